// Which bytes a sequence of format `shadowkv` has taken and written, at every moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 333;
constexpr int32_t kGenerated = BATON_LONG_ANSWER_TOKENS;
constexpr std::byte kPoison{0xff};

// Watches the tail of one layer: which of its slots and blocks hold bytes that somebody wrote.
class WatchedTail {
 public:
  WatchedTail(const kernels::ShadowKvSequence& at_step, int32_t max_tokens)
      : layout_(*at_step.layout, max_tokens),
        bytes_(at_step.tail, layout_.bytes),
        slots_(static_cast<size_t>(layout_.exact_slots)),
        blocks_(static_cast<size_t>(layout_.block_count)) {
    std::ranges::fill(bytes_, kPoison);
  }
  // Bytes of the slots and blocks that were written so far.
  size_t WrittenBytes() {
    return Count(slots_, 0, layout_.slot_bytes()) +
           Count(blocks_, layout_.blocks, layout_.block.bytes);
  }

 private:
  size_t Count(std::vector<bool>& written, size_t begin, size_t size) const {
    size_t bytes = 0;
    for (size_t i = 0; i < written.size(); ++i) {
      written[i] =
          written[i] || std::ranges::any_of(bytes_.subspan(begin + i * size, size),
                                            [](std::byte byte) { return byte != kPoison; });
      bytes += written[i] ? size : 0;
    }
    return bytes;
  }

  const kernels::ShadowKvTailLayout layout_;
  const std::span<std::byte> bytes_;
  std::vector<bool> slots_;
  std::vector<bool> blocks_;
};

// The host's memory, which may have no more blocks.
class FiniteMemory final : public kernels::MemorySpace {
 public:
  // The next `count` blocks are missing.
  void FailNext(int count) { missing_ = count; }

  bool is_host() const override { return true; }
  absl::StatusOr<kernels::Memory> Allocate(size_t bytes) override {
    if (missing_ > 0) {
      --missing_;
      return absl::ResourceExhaustedError("no block");
    }
    return kernels::HostMemory().Allocate(bytes);
  }
  absl::StatusOr<kernels::Memory> Adopt(kernels::Buffer source) override {
    return kernels::HostMemory().Adopt(std::move(source));
  }
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override {
    return kernels::HostMemory().Upload(target, source, bytes);
  }
  absl::Status Download(void* target, const void* source, size_t bytes) override {
    return kernels::HostMemory().Download(target, source, bytes);
  }
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override {
    return kernels::HostMemory().Copy(target, source, bytes);
  }
  absl::Status Zero(std::byte* target, size_t bytes) override {
    return kernels::HostMemory().Zero(target, bytes);
  }

 private:
  int missing_ = 0;
};

class ShadowKvMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  static const char* policy() { return GetParam(); }
  PoolBytes pool() const { return worker_.Format(policy()).pool(); }

  CodecWorker worker_{{.shadowkv_bytes = 16 << 20}};
};

// One run from the first byte to the last: nothing to give back early.
TEST_P(ShadowKvMemoryTest, BytesAreThoseOfTheRun) {
  const PoolBytes before = pool();
  const WindowShape shape = worker_.Window(policy(), kPrompt);
  EXPECT_EQ(shape.pages_per_layer, 1);
  const TestPrompt prompt(worker_, kPrompt, 3);
  const auto kv = worker_.Allocate(policy(), kPrompt, kGenerated);
  EXPECT_EQ(pool().free, before.total - kv->ReservedBytes());
  ASSERT_TRUE(prompt.Encode(*kv).ok());
  EXPECT_EQ(kv->ResidentBytes(), kTestLayers * shape.page_bytes);
  EXPECT_GE(kv->ReservedBytes(), kv->ResidentBytes());
  const auto prompt_only = worker_.Allocate(policy(), kPrompt, 0);
  EXPECT_GE(prompt_only->ReservedBytes(), kTestLayers * shape.page_bytes);
  EXPECT_LT(prompt_only->ReservedBytes(), kTestLayers * shape.page_bytes + 4096);
  const int64_t free = pool().free;
  kv->Trim();
  EXPECT_EQ(pool().free, free);
}

// An answer far longer than its prompt, between two sequences that nobody touches.
TEST_P(ShadowKvMemoryTest, LongAnswersAreReportedByteForByte) {
  const TestPrompt prompt(worker_, kPrompt, 4);
  const auto before = worker_.Allocate(policy(), kPrompt, 0);
  const auto kv = worker_.Allocate(policy(), kPrompt, kGenerated);
  const auto behind = worker_.Allocate(policy(), kPrompt, 0);
  for (EncodedKv* sequence : {before.get(), kv.get(), behind.get()}) {
    ASSERT_TRUE(prompt.Encode(*sequence).ok());
  }
  const int64_t prompt_bytes = kTestLayers * worker_.Window(policy(), kPrompt).page_bytes;
  EXPECT_EQ(kv->ResidentBytes(), prompt_bytes);
  std::vector<WatchedTail> tails;
  tails.reserve(kTestLayers);
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    tails.emplace_back(static_cast<ShadowKvSequence&>(*kv).AtStep(layer, kPrompt - 1), kGenerated);
  }
  EXPECT_EQ(kv->ResidentBytes(), prompt_bytes) << "before the first generated token";
  for (int32_t step = 0; step < kGenerated; ++step) {
    ASSERT_TRUE(DecodeStep({kv.get()}, {kPrompt + step}, {4}).ok()) << step;
    int64_t written = prompt_bytes;
    for (WatchedTail& tail : tails) {
      written += static_cast<int64_t>(tail.WrittenBytes());
    }
    ASSERT_EQ(kv->ResidentBytes(), written) << step;
    ASSERT_LE(written, kv->ReservedBytes()) << step;
    ASSERT_EQ(pool().total - pool().free,
              before->ReservedBytes() + kv->ReservedBytes() + behind->ReservedBytes())
        << step;
  }
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    EXPECT_TRUE(
        std::ranges::equal(EncodedPages(*before, layer)[0], EncodedPages(*behind, layer)[0]));
    EXPECT_TRUE(std::ranges::equal(EncodedPages(*before, layer)[0], EncodedPages(*kv, layer)[0]))
        << "the prompt section never changes";
  }
}

TEST_P(ShadowKvMemoryTest, RunsOfSequencesDoNotTouchAndAllComeBack) {
  std::vector<std::unique_ptr<EncodedKv>> sequences;
  std::vector<std::span<std::byte>> sections;
  while (auto kv = worker_.Allocate(policy(), kPrompt, static_cast<int64_t>(sequences.size()))) {
    for (const std::span<std::byte> section : WindowPages(*kv, worker_.Window(policy(), kPrompt))) {
      sections.push_back(section);
    }
    sequences.push_back(std::move(kv));
  }
  ASSERT_GT(sequences.size(), 2u);
  std::ranges::sort(sections, {}, [](const auto& section) { return section.data(); });
  for (size_t i = 1; i < sections.size(); ++i) {
    ASSERT_LE(sections[i - 1].data() + sections[i - 1].size(), sections[i].data());
  }
  while (!sequences.empty()) {
    sequences.erase(sequences.begin() + static_cast<ptrdiff_t>(sequences.size() / 2));
  }
  EXPECT_EQ(pool().free, pool().total);
}

TEST_P(ShadowKvMemoryTest, ACacheIsEmptyWhateverItsMemoryHeld) {
  const TestPrompt prompt(worker_, kPrompt, 5);
  for (const char* of : {"the first sequence", "the second one"}) {
    const auto kv = worker_.Allocate(policy(), kPrompt, 2);
    ASSERT_TRUE(prompt.Encode(*kv).ok());
    ASSERT_TRUE(Decode(*kv, kPrompt, 1, 5).ok());
    EXPECT_EQ(kv->counters().hits, 0) << of;
    EXPECT_GT(kv->counters().misses, 0) << of;
    ASSERT_TRUE(Decode(*kv, kPrompt + 1, 1, 5).ok());
    EXPECT_GT(kv->counters().hits, 0) << of;
  }
}

TEST_P(ShadowKvMemoryTest, WithoutMemoryForACacheTheResultsAreTheSame) {
  FiniteMemory memory;
  const CodecWorker worker({.shadowkv_bytes = 16 << 20}, nullptr, kernels::CpuOps(), memory);
  const TestPrompt prompt(worker, kPrompt, 6);
  const auto cached = worker.Allocate(policy(), kPrompt, 4);
  const auto without = worker.Allocate(policy(), kPrompt, 4);
  ASSERT_TRUE(prompt.Encode(*cached).ok() && prompt.Encode(*without).ok());
  const auto want = Decode(*cached, kPrompt, 4, 6);
  memory.FailNext(2);  // and once more when what is free was given back
  const auto got = Decode(*without, kPrompt, 4, 6);
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  EXPECT_EQ(*got, *want);
  EXPECT_GT(cached->counters().hits, 0);
  EXPECT_EQ(without->counters().hits, 0);
}

TEST(ShadowKvBudgetTest, OnlyPromptsThatAreAttendedWholeAreKeptDenseUnlessThatWasAskedFor) {
  CodecWorker worker({.shadowkv_bytes = 1 << 20});
  const auto prefers_dense = [&](const char* text, int64_t tokens) {
    return worker.Format(text).PrefersDense(CodecWorker::Parse(text).resident, tokens);
  };
  EXPECT_TRUE(prefers_dense("shadowkv:budget=256,outliers=0,local=1,sink=0", 271));
  EXPECT_FALSE(prefers_dense("shadowkv:budget=256,outliers=0,local=1,sink=0", 272));
  EXPECT_FALSE(prefers_dense("shadowkv:budget=1.0,outliers=0,local=1,sink=0", 271));
  EXPECT_FALSE(prefers_dense("shadowkv:budget=1.0,outliers=0,local=1,sink=0", 16));
  EXPECT_TRUE(prefers_dense("shadowkv:budget=1.0,outliers=0,local=1,sink=0", 15))
      << "there is no chunk to code";
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    ShadowKvMemoryTest,
    testing::Values("shadowkv:rank=32,budget=64,outliers=2,local=2",
                    "shadowkv:rank=96,chunk=1,sel=q2,budget=0.0625,outliers=0,local=32,a=int8",
                    "shadowkv:rank=16,chunk=4,sel=bounds,budget=32,outliers=3,gen=exact,v=bf16"),
    [](const testing::TestParamInfo<const char*>& instance) {
      return std::to_string(instance.index);
    });

}  // namespace
}  // namespace baton::kv
