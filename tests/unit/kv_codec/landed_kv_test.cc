// What comes from another worker: wrong states, random pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "kernels/kv_format/shadowkv.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 150;
constexpr int32_t kGenerated = 40;
constexpr unsigned kSeed = 20240613;

std::string RandomBytes(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

void Randomize(std::mt19937& random, const WindowShape& shape, EncodedKv& kv) {
  for (const std::span<std::byte> page : WindowPages(kv, shape)) {
    for (std::byte& byte : page) {
      byte = static_cast<std::byte>(random());
    }
  }
}

// Counts as a diffkv state: [layers][kv_heads][high, low].
std::string DiffKvState(const std::vector<uint32_t>& counts) {
  std::string state;
  for (const uint32_t count : counts) {
    for (int shift = 0; shift < 32; shift += 8) {
      state.push_back(static_cast<char>(count >> shift));
    }
  }
  return state;
}

class LandedKvTest : public testing::Test {
 protected:
  void ExpectRefused(EncodedKv& kv, const std::string& state, const char* what) {
    EXPECT_EQ(kv.SentPages(state, kTestLayers).status().code(), absl::StatusCode::kInvalidArgument)
        << what;
    EXPECT_EQ(kv.Adopt(state, kTestLayers).code(), absl::StatusCode::kInvalidArgument) << what;
  }
  // That `landed`, to which a prompt of `policy` was shipped, still is what it was.
  void ExpectUnchanged(EncodedKv& landed, EncodedKv& sender, const char* policy) {
    const auto fresh = worker_.Allocate(policy, kPrompt, kGenerated);
    Ship(sender, *fresh, worker_.Window(policy, kPrompt));
    ASSERT_TRUE(landed.Adopt(sender.State(), kTestLayers).ok());
    ASSERT_TRUE(fresh->Adopt(sender.State(), kTestLayers).ok());
    const auto got = Decode(landed, kPrompt, kGenerated, 1);
    const auto want = Decode(*fresh, kPrompt, kGenerated, 1);
    ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
    EXPECT_EQ(*got, *want);
    landed.Trim();
    fresh->Trim();
    EXPECT_EQ(landed.ReservedBytes(), fresh->ReservedBytes());
  }
  std::pair<std::unique_ptr<EncodedKv>, std::unique_ptr<EncodedKv>> MakePair(const char* policy) {
    const TestPrompt prompt(worker_, kPrompt, 1);
    auto sender = worker_.Allocate(policy, kPrompt, 0);
    EXPECT_TRUE(prompt.Encode(*sender).ok());
    auto landed = worker_.Allocate(policy, kPrompt, kGenerated);
    Ship(*sender, *landed, worker_.Window(policy, kPrompt));
    return {std::move(sender), std::move(landed)};
  }

  CodecWorker worker_;
};

TEST_F(LandedKvTest, DiffKvRefusesStatesThatCannotBeAndChangesNothing) {
  constexpr const char* kPolicy = "diffkv:w=16,al=0.3";
  const auto [sender, landed] = MakePair(kPolicy);
  const std::string good = sender->State();
  ASSERT_EQ(good.size(), size_t{kTestLayers} * kTestKvHeads * 2 * 4);
  for (size_t size = 0; size < good.size(); ++size) {
    ExpectRefused(*landed, good.substr(0, size), "truncated");
  }
  ExpectRefused(*landed, good + std::string(1, '\0'), "one byte more");
  ExpectRefused(*landed, good + good, "twice");
  std::vector<uint32_t> counts(good.size() / 4, 0);
  for (size_t at = 0; at < counts.size(); ++at) {
    for (const uint32_t count : {uint32_t{kPrompt} + 1, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
      std::vector<uint32_t> wrong = counts;
      wrong[at] = count;
      ExpectRefused(*landed, DiffKvState(wrong), "more tokens in a tier than the prompt has");
    }
  }
  for (size_t head = 0; head < counts.size() / 2; ++head) {
    std::vector<uint32_t> wrong = counts;
    wrong[2 * head] = kPrompt - 10;
    wrong[2 * head + 1] = 11;
    ExpectRefused(*landed, DiffKvState(wrong), "more tokens in a head than the prompt has");
  }
  ExpectUnchanged(*landed, *sender, kPolicy);
}

TEST_F(LandedKvTest, DiffKvTakesEveryStateThatCanBe) {
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const int32_t per_layer = worker_.Window("diffkv", kPrompt).pages_per_layer;
  for (int i = 0; i < 300; ++i) {
    const auto kv = worker_.Allocate("diffkv", kPrompt, kGenerated);
    std::vector<uint32_t> counts;
    for (int head = 0; head < kTestLayers * kTestKvHeads; ++head) {
      counts.push_back(static_cast<uint32_t>(random() % (kPrompt + 1)));
      counts.push_back(static_cast<uint32_t>(random() % (kPrompt + 1 - counts.back())));
    }
    const std::string state = DiffKvState(counts);
    const auto sent = kv->SentPages(state, kTestLayers);
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_LE(*std::max_element(sent->begin(), sent->end()), per_layer);
    ASSERT_TRUE(kv->Adopt(state, kTestLayers).ok());
    EXPECT_EQ(kv->State(), state);
  }
}

TEST_F(LandedKvTest, ShadowKvRefusesAnyState) {
  constexpr const char* kPolicy = "shadowkv:rank=32,budget=32,outliers=2,local=2";
  const auto [sender, landed] = MakePair(kPolicy);
  EXPECT_EQ(sender->State(), "");
  ExpectRefused(*landed, std::string(1, '\0'), "a byte");
  ExpectRefused(*landed, std::string(5000, 'x'), "many bytes");
  ExpectUnchanged(*landed, *sender, kPolicy);
}

TEST_F(LandedKvTest, ShadowKvRefusesStaticIdsThatAreNoneAndChangesNothing) {
  constexpr const char* kPolicy = "shadowkv:rank=32,budget=32,outliers=3,local=2";
  const auto [sender, landed] = MakePair(kPolicy);
  const kernels::ShadowKvPromptLayout layout = ShadowKvLayout(kPolicy, kPrompt);
  const auto window = WindowPages(*landed, worker_.Window(kPolicy, kPrompt));
  ASSERT_EQ(window[0].size(), layout.bytes);
  ASSERT_EQ(layout.static_chunks, 4);
  const auto at = [&](size_t layer, int64_t head, int64_t i) {
    return window[layer].data() + layout.static_ids +
           static_cast<size_t>(head * layout.static_chunks + i) * sizeof(int32_t);
  };
  const auto read = [&](size_t layer, int64_t head, int64_t i) {
    int32_t id = 0;
    std::memcpy(&id, at(layer, head, i), sizeof(id));
    return id;
  };
  for (size_t layer = 0; layer < kTestLayers; ++layer) {
    for (int64_t head = 0; head < kTestKvHeads; ++head) {
      for (int64_t i = 0; i < layout.static_chunks; ++i) {
        const int32_t good = read(layer, head, i);
        const auto chunks = static_cast<int32_t>(layout.coded.chunks);
        std::vector<int32_t> wrong = {-1, INT32_MIN, INT32_MAX, chunks};
        if (i > 0) {
          wrong.push_back(read(layer, head, i - 1));  // repeated
        }
        for (const int32_t id : wrong) {
          std::memcpy(at(layer, head, i), &id, sizeof(id));
          EXPECT_EQ(landed->Adopt("", kTestLayers).code(), absl::StatusCode::kInvalidArgument)
              << "layer " << layer << " head " << head << " entry " << i << ": " << id;
        }
        std::memcpy(at(layer, head, i), &good, sizeof(good));
      }
    }
  }
  ExpectUnchanged(*landed, *sender, kPolicy);
}

TEST_F(LandedKvTest, ShadowKvRefusesValueClustersThatAreNone) {
  constexpr const char* kPolicy = "shadowkv:rank=32,sel=q2,budget=32,local=2";
  const auto [sender, landed] = MakePair(kPolicy);
  const kernels::ShadowKvPromptLayout layout = ShadowKvLayout(kPolicy, kPrompt);
  const auto window = WindowPages(*landed, worker_.Window(kPolicy, kPrompt));
  ASSERT_EQ(window[0].size(), layout.bytes);
  const int64_t last = kTestKvHeads * layout.coded.tokens - 1;
  for (size_t layer = 0; layer < kTestLayers; ++layer) {
    for (const int64_t token : {int64_t{0}, last}) {
      std::byte& id =
          window[layer][layout.coded_begin + layout.coded.cluster_ids + static_cast<size_t>(token)];
      const std::byte good = id;
      for (const int wrong : {layout.config.value_clusters, 255}) {
        id = static_cast<std::byte>(wrong);
        EXPECT_EQ(landed->Adopt("", kTestLayers).code(), absl::StatusCode::kInvalidArgument)
            << "layer " << layer << " token " << token << ": " << wrong;
      }
      id = good;
    }
  }
  ExpectUnchanged(*landed, *sender, kPolicy);
}

TEST_F(LandedKvTest, RandomStatesAreAnsweredAndNeverCrash) {
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const char* policy : {"diffkv", "shadowkv:rank=16,budget=32,outliers=2,local=2"}) {
    const int32_t per_layer = worker_.Window(policy, kPrompt).pages_per_layer;
    const auto kv = worker_.Allocate(policy, kPrompt, 0);
    for (int i = 0; i < 3000; ++i) {
      // Small values half of the time, so that some states can be.
      std::string state = RandomBytes(random, random() % 3 == 0 ? random() % 100 : 48);
      if (random() % 2 == 0) {
        for (size_t byte = 0; byte < state.size(); ++byte) {
          state[byte] = byte % 4 == 0 ? static_cast<char>(state[byte] & 63) : '\0';
        }
      }
      const auto sent = kv->SentPages(state, kTestLayers);
      if (!sent.ok()) {
        ASSERT_EQ(sent.status().code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      for (const int32_t pages : *sent) {
        ASSERT_TRUE(pages >= 0 && pages <= per_layer);
      }
    }
  }
}

// Page bytes are only computed with: whatever they are, decoding ends and stays in its memory.
TEST_F(LandedKvTest, RandomPagesDecodeToSomething) {
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const char* policy : {"diffkv:w=8,al=0.5,ah=2",
                             "diffkv:policy=paper,w=4,al=0.5,ah=3",
                             "shadowkv:rank=16,budget=32,outliers=0,sink=0,local=2",
                             "shadowkv:rank=16,sel=q2,budget=32,outliers=0,sink=0,local=1,a=int8",
                             "shadowkv:rank=16,budget=32,outliers=0,sink=0,local=2,landmarks=int8",
                             "shadowkv:rank=16,sel=bounds,budget=64,outliers=0,sink=0,v=v2",
                             "shadowkv:rank=16,sel=q2,budget=32,outliers=0,sink=0,joint=40"}) {
    for (int i = 0; i < 5; ++i) {
      const auto [sender, landed] = MakePair(policy);
      Randomize(random, worker_.Window(policy, kPrompt), *landed);
      if (std::string_view(policy).find("sel=q2") != std::string_view::npos) {
        RepairShadowKvIds(policy, kPrompt, *landed);
      }
      ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok()) << policy;
      landed->Trim();
      const auto out = Decode(*landed, kPrompt, kGenerated, 2);
      ASSERT_TRUE(out.ok()) << policy << ": " << out.status();
      EXPECT_EQ(out->size(), size_t{kGenerated} * kTestLayers * kTestQueryWidth);
    }
  }
  EXPECT_EQ(worker_.Format("diffkv").pool().free, worker_.Format("diffkv").pool().total);
  EXPECT_EQ(worker_.Format("shadowkv").pool().free, worker_.Format("shadowkv").pool().total);
}

TEST_F(LandedKvTest, RandomShadowKvSectionsHaveNoStaticIds) {
  constexpr const char* kPolicy = "shadowkv:rank=16,budget=32,outliers=2,local=2";
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (int i = 0; i < 50; ++i) {
    const auto kv = worker_.Allocate(kPolicy, kPrompt, kGenerated);
    Randomize(random, worker_.Window(kPolicy, kPrompt), *kv);
    EXPECT_EQ(kv->Adopt("", kTestLayers).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::kv
