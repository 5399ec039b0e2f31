// Conversations in every KV format over a real model: a turn goes on from the resident form of what
// was said before.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

constexpr kv::CodecPools kPools = {
    .fp8_bytes = 8 << 20, .diffkv_bytes = 16 << 20, .shadowkv_bytes = 16 << 20};
// New tokens of each turn: a document, then short and long questions; 7 and 64 meet the edges of
// chunks, pages and the 64 queries that score.
const std::vector<int32_t> kAdded = {150, 7, 90, 1, 64};
constexpr int32_t kMaxTokens = 9;

struct Answer {
  std::vector<int32_t> tokens;
  int64_t cached_tokens = 0;
  int64_t resident_bytes = 0;

  bool operator==(const Answer&) const = default;
};

int64_t UsedBytes(const EngineLoad& load) {
  int64_t used = 0;
  for (const FormatPool& pool : load.format_pools) {
    used += pool.bytes.total - pool.bytes.free;
  }
  return used;
}

class EngineSessionFormatsTest
    : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    auto opened = checkpoint::Checkpoint::Open(
        BATON_SOURCE_DIR "/tests/data/models/" + std::get<0>(GetParam()), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }
  static const std::string& policy() { return std::get<1>(GetParam()); }

  static std::vector<int32_t> Question(int32_t tokens, size_t turn) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((i * i * 31 + i * 7 + turn * 101) % 4000);
    }
    return ids;
  }

  static GenerateRequest Request(std::vector<int32_t> prompt,
                                 size_t turn,
                                 const std::string& session) {
    GenerateRequest request;
    request.request_id = absl::StrCat(session, "-", turn);
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = kMaxTokens;
    request.kv_policy = policy();
    request.session_id = session;
    return request;
  }

  static Answer AnswerOf(const RecordingListener& listener) {
    EXPECT_TRUE(listener.AwaitDone());
    EXPECT_TRUE(listener.status().ok()) << listener.status();
    return {.tokens = listener.tokens(),
            .cached_tokens = listener.stats().cached_tokens,
            .resident_bytes = listener.stats().kv_resident_bytes};
  }

  // A turn of an engine of role both.
  static Answer Ask(RealEngine& both, GenerateRequest request) {
    const auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(both.engine->Submit(std::move(request), listener).ok());
    Answer answer = AnswerOf(*listener);
    AwaitKept(*both.engine);
    return answer;
  }

  // A turn of a prefill and a decode engine.
  static Answer AskSplit(RealEngine& prefill, RealEngine& decode, GenerateRequest request) {
    const auto tail = std::make_shared<RecordingListener>();
    absl::StatusOr<ReservationGrant> grant =
        AwaitGrant(*decode.engine,
                   {.request_id = request.request_id,
                    .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                    .sampling = request.sampling,
                    .kv_policy = request.kv_policy,
                    .session_id = request.session_id,
                    .prompt = request.prompt},
                   tail);
    EXPECT_TRUE(grant.ok()) << grant.status();
    const auto head = std::make_shared<RecordingListener>();
    if (!grant->extends_kept) {
      request.session_id.clear();
      request.sink = std::make_unique<CopySink>(*decode.engine, *std::move(grant));
      EXPECT_TRUE(prefill.engine->Submit(std::move(request), head).ok());
      EXPECT_TRUE(head->AwaitDone());
    }
    Answer answer = AnswerOf(*tail);
    const std::vector<int32_t> first = head->tokens();
    answer.tokens.insert(answer.tokens.begin(), first.begin(), first.end());
    AwaitKept(*decode.engine);
    return answer;
  }

  // The request has been put aside and nothing else holds memory.
  static void AwaitKept(Engine& engine) {
    for (int i = 0; i < 30000 && engine.load().kept_sessions == 0; ++i) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const EngineLoad load = engine.load();
    EXPECT_EQ(load.kept_sessions, 1);
    EXPECT_EQ(load.pages_free, load.pages_total);
    if (policy() != "dense") {
      EXPECT_EQ(UsedBytes(load), load.kept_bytes);
    }
  }

  template <typename AskTurn>
  static std::vector<Answer> Converse(AskTurn ask) {
    std::vector<Answer> answers;
    std::vector<int32_t> said;
    for (size_t turn = 0; turn < kAdded.size(); ++turn) {
      const std::vector<int32_t> question = Question(kAdded[turn], turn);
      said.insert(said.end(), question.begin(), question.end());
      answers.push_back(ask(Request(said, turn, "talk")));
      const std::vector<int32_t>& tokens = answers.back().tokens;
      EXPECT_EQ(tokens.size(), static_cast<size_t>(kMaxTokens));
      const auto known =
          static_cast<int64_t>(said.size()) - static_cast<int64_t>(question.size()) - 1;
      EXPECT_EQ(answers.back().cached_tokens, turn == 0 ? 0 : known) << "turn " << turn;
      said.insert(said.end(), tokens.begin(), tokens.end());
    }
    return answers;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

TEST_P(EngineSessionFormatsTest, TurnsDoNotDependOnChunksOrOnWhereTheFirstWasPrefilled) {
  RealEngine whole(*checkpoint_, Role::kBoth, /*chunk=*/512, 512, kPools);
  const std::vector<Answer> expected =
      Converse([&](GenerateRequest request) { return Ask(whole, std::move(request)); });
  for (const int32_t chunk : {1, 7, 64}) {
    RealEngine pieces(*checkpoint_, Role::kBoth, chunk, 512, kPools);
    const std::vector<Answer> answers =
        Converse([&](GenerateRequest request) { return Ask(pieces, std::move(request)); });
    for (size_t turn = 0; turn < expected.size(); ++turn) {
      EXPECT_EQ(answers[turn].tokens, expected[turn].tokens) << "chunk " << chunk << " " << turn;
      EXPECT_EQ(answers[turn].resident_bytes, expected[turn].resident_bytes);
    }
  }
  RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 64, kPools);
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kPools);
  const std::vector<Answer> split = Converse(
      [&](GenerateRequest request) { return AskSplit(prefill, decode, std::move(request)); });
  for (size_t turn = 0; turn < expected.size(); ++turn) {
    EXPECT_EQ(split[turn].tokens, expected[turn].tokens) << "turn " << turn;
    EXPECT_EQ(split[turn].resident_bytes, expected[turn].resident_bytes) << "turn " << turn;
  }
}

// Other formats keep what was said before in their own precision.
class EngineDenseSessionTest : public EngineSessionFormatsTest {};

TEST_P(EngineDenseSessionTest, TurnsAreBitForBitThoseOfWholePrefills) {
  RealEngine kept(*checkpoint_, Role::kBoth, 64, 512, kPools);
  RealEngine fresh(*checkpoint_, Role::kBoth, 64, 512, kPools);
  Converse([&](const GenerateRequest& request) {
    const Answer answer =
        Ask(kept, Request(request.prompt, request.prompt.size(), request.session_id));
    const auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(
        fresh.engine->Submit(Request(request.prompt, request.prompt.size(), ""), listener).ok());
    EXPECT_EQ(answer.tokens, AnswerOf(*listener).tokens);
    return answer;
  });
}

std::string NameOf(const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models,
                         EngineDenseSessionTest,
                         testing::Combine(testing::Values("tiny-llama-needle",
                                                          "tiny-llama-needle-swiftkv-l6"),
                                          testing::Values("dense")),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(
    Models,
    EngineSessionFormatsTest,
    testing::Combine(testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("dense",
                                     "fp8",
                                     "diffkv",
                                     "diffkv:high=k4v4,ah=0.5,al=0.2,score=all,base=i,"
                                     "policy=paper,w=8,sinks=2",
                                     "shadowkv:rank=32,chunk=2,sel=q2,budget=32,outliers=0,local=8,"
                                     "a=int8")),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    SwiftKvModels,
    EngineSessionFormatsTest,
    testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("shadowkv:rank=32,chunk=2,sel=q2,budget=32,outliers=0,local=8,"
                                     "joint=160")),
    NameOf);

}  // namespace
}  // namespace baton::engine
