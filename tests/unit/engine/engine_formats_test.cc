// Requests in encoded KV formats over a real model, on one engine and on two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "common/base/pieces.h"
#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "common/kv/codec/codec_set.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPromptTokens = 220;
constexpr int32_t kMaxTokens = 20;
// Room for two or three of the requests here.
constexpr kv::CodecPools kSmall = {.diffkv_bytes = 5 << 19, .shadowkv_bytes = 4 << 20};
constexpr kv::CodecPools kLarge = {.diffkv_bytes = 16 << 20, .shadowkv_bytes = 16 << 20};
// More than any test waits for: such a request ends by being cancelled.
constexpr int32_t kEndless = 1500;

// What was answered to commits with other states, and the reservations that were open then.
struct Tried {
  std::vector<absl::Status> answers;
  std::vector<int64_t> open;
};

// Commits other states before the right one.
class StatesSink final : public KvSink {
 public:
  StatesSink(Engine& decode,
             ReservationGrant grant,
             std::vector<std::string> states,
             std::shared_ptr<Tried> tried)
      : decode_(decode),
        grant_(grant),
        inner_(decode, std::move(grant)),
        states_(std::move(states)),
        tried_(std::move(tried)) {}
  void LayersReady(ReadyKv ready) override { inner_.LayersReady(std::move(ready)); }
  void Commit(CommitInfo info, std::function<void(absl::Status, int64_t)> done) override {
    for (const std::string& state : states_) {
      CommitInfo wrong = info;
      wrong.kv_state = state;
      absl::Notification answered;
      decode_.Commit(
          grant_.reservation_id, grant_.epoch, 1, std::move(wrong), [&](absl::Status status) {
            tried_->answers.push_back(std::move(status));
            answered.Notify();
          });
      answered.WaitForNotification();
      tried_->open.push_back(decode_.load().reservations);
    }
    inner_.Commit(std::move(info), std::move(done));
  }
  void Abort(absl::Status reason, std::function<void()> released) override {
    inner_.Abort(std::move(reason), std::move(released));
  }

 private:
  Engine& decode_;
  ReservationGrant grant_;
  CopySink inner_;
  std::vector<std::string> states_;
  std::shared_ptr<Tried> tried_;
};

// Takes everything and keeps nothing.
class AcceptingSink final : public KvSink {
 public:
  void LayersReady(ReadyKv) override {}
  void Commit(CommitInfo, std::function<void(absl::Status, int64_t)> done) override {
    done(absl::OkStatus(), 0);
  }
  void Abort(absl::Status, std::function<void()> released) override { released(); }
};

class EngineFormatsTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    auto opened = checkpoint::Checkpoint::Open(
        BATON_SOURCE_DIR "/tests/data/models/" + std::get<0>(GetParam()), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }
  static const std::string& policy() { return std::get<1>(GetParam()); }
  static bool diffkv() { return policy().starts_with("diffkv"); }

  static std::vector<int32_t> Prompt(int32_t tokens, int32_t salt = 0) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] =
          static_cast<int32_t>((i * i * 31 + i * 7 + static_cast<size_t>(salt) * 101) % 4000);
    }
    return prompt;
  }
  static SamplingParams Params(int32_t n, int32_t max_tokens = kMaxTokens) {
    SamplingParams params;
    params.temperature = n > 1 ? 0.8f : 0.0f;
    params.seed = 11;
    params.max_tokens = max_tokens;
    params.n = n;
    return params;
  }
  static GenerateRequest Request(const std::string& id, int32_t n) {
    GenerateRequest request;
    request.request_id = id;
    request.prompt = Prompt(kPromptTokens);
    request.sampling = Params(n);
    request.kv_policy = policy();
    return request;
  }
  static absl::StatusOr<ReservationGrant> Reserve(Engine& engine,
                                                  const std::string& id,
                                                  int64_t prompt_tokens,
                                                  SamplingParams params,
                                                  std::shared_ptr<RecordingListener> listener) {
    ReserveRequest request;
    request.request_id = id;
    request.prompt_tokens = prompt_tokens;
    request.sampling = std::move(params);
    request.kv_policy = policy();
    return AwaitGrant(engine, std::move(request), std::move(listener));
  }
  // Asks for a prompt, or for generated tokens, of `extra` more than the smallest request here.
  static absl::Status Probe(Engine& engine,
                            Role role,
                            int32_t extra,
                            std::shared_ptr<RecordingListener> listener) {
    if (role == Role::kDecode) {
      return Reserve(engine, "probe", kPromptTokens, Params(1, 1 + extra), std::move(listener))
          .status();
    }
    GenerateRequest request = Request("probe", 1);
    if (role == Role::kPrefill) {
      request.prompt = Prompt(kPromptTokens + extra);
      request.sink = std::make_unique<AcceptingSink>();
    } else {
      request.sampling.max_tokens = 1 + extra;
    }
    return engine.Submit(std::move(request), std::move(listener));
  }
  // Dense pages are free, and so is the format's pool to the last page: the largest request that it
  // can ever hold is served at once.
  static void ExpectBaseline(RealEngine& engine, Role role) {
    const auto give_back = [&](const RecordingListener& listener) {
      engine.engine->Cancel("probe", absl::CancelledError("only asked"));
      ASSERT_TRUE(listener.AwaitDone());
      ASSERT_TRUE(Eventually([&] { return engine.AtBaseline(); }));
    };
    ASSERT_TRUE(Eventually([&] { return engine.AtBaseline(); }));
    int32_t extra = 0;
    for (int32_t step = 16384; step >= 1; step /= 2) {
      const auto listener = std::make_shared<RecordingListener>();
      const absl::Status status = Probe(*engine.engine, role, extra + step, listener);
      ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
      if (status.ok()) {
        extra += step;
        give_back(*listener);
      }
    }
    const auto listener = std::make_shared<RecordingListener>();
    const absl::Status status = Probe(*engine.engine, role, extra, listener);
    ASSERT_TRUE(status.ok()) << status;
    if (role != Role::kDecode) {
      EXPECT_TRUE(listener->AwaitTokens(1)) << "was not admitted";
    }
    give_back(*listener);
  }

  struct Split {
    std::shared_ptr<RecordingListener> head = std::make_shared<RecordingListener>();
    std::shared_ptr<RecordingListener> tail = std::make_shared<RecordingListener>();

    std::vector<int32_t> tokens(int32_t index) const {
      std::vector<int32_t> all = head->tokens(index);
      const std::vector<int32_t> rest = tail->tokens(index);
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    }
  };
  // Hands a request over; `wrong_states` are committed first.
  static Split Start(RealEngine& prefill,
                     RealEngine& decode,
                     GenerateRequest request,
                     std::vector<std::string> wrong_states = {},
                     std::shared_ptr<Tried> tried = nullptr) {
    Split split;
    auto grant = Reserve(*decode.engine,
                         request.request_id,
                         static_cast<int64_t>(request.prompt.size()),
                         request.sampling,
                         split.tail);
    EXPECT_TRUE(grant.ok()) << grant.status();
    request.sink = std::make_unique<StatesSink>(
        *decode.engine, *std::move(grant), std::move(wrong_states), std::move(tried));
    const absl::Status status = prefill.engine->Submit(std::move(request), split.head);
    EXPECT_TRUE(status.ok()) << status;
    return split;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

TEST_P(EngineFormatsTest, ChunksBatchesAndTheHandOffDoNotChangeTokens) {
  RealEngine one(*checkpoint_, Role::kBoth, /*chunk=*/kPromptTokens, 512, kSmall);
  RealEngine chunked(*checkpoint_, Role::kBoth, /*chunk=*/37, 100, kSmall);
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  RealEngine prefill(*checkpoint_, Role::kPrefill, 50, 64, kSmall);
  for (const int32_t n : {1, 2}) {
    const auto whole = std::make_shared<RecordingListener>();
    ASSERT_TRUE(one.engine->Submit(Request("r", n), whole).ok());
    ASSERT_TRUE(whole->AwaitDone());
    ASSERT_TRUE(whole->status().ok()) << whole->status();
    const auto pieces = std::make_shared<RecordingListener>();
    const auto neighbour = std::make_shared<RecordingListener>();
    GenerateRequest other = Request("neighbour", 1);
    other.prompt = Prompt(90, 5);
    ASSERT_TRUE(chunked.engine->Submit(std::move(other), neighbour).ok());
    ASSERT_TRUE(chunked.engine->Submit(Request("r", n), pieces).ok());
    const Split split = Start(prefill, decode, Request("r", n));
    ASSERT_TRUE(pieces->AwaitDone() && neighbour->AwaitDone());
    ASSERT_TRUE(split.head->AwaitDone() && split.tail->AwaitDone());
    EXPECT_TRUE(split.tail->status().ok()) << split.tail->status();
    for (int32_t i = 0; i < n; ++i) {
      EXPECT_EQ(whole->tokens(i).size(), static_cast<size_t>(kMaxTokens));
      EXPECT_EQ(pieces->tokens(i), whole->tokens(i)) << "n " << n << " sequence " << i;
      EXPECT_EQ(split.tokens(i), whole->tokens(i)) << "n " << n << " sequence " << i;
    }
    EXPECT_EQ(whole->stats().kv_policy, policy());
    EXPECT_EQ(split.tail->stats().kv_policy, policy());
    EXPECT_GT(whole->stats().kv_resident_bytes, 0);
    EXPECT_EQ(split.tail->stats().kv_resident_bytes, whole->stats().kv_resident_bytes);
    EXPECT_GT(split.tail->stats().kv_wire_bytes, 0);
    EXPECT_LT(split.tail->stats().kv_wire_bytes, whole->stats().kv_logical_bytes);
    EXPECT_EQ(whole->errors() + pieces->errors() + split.head->errors() + split.tail->errors(), 0);
  }
  ExpectBaseline(one, Role::kBoth);
  ExpectBaseline(prefill, Role::kPrefill);
  ExpectBaseline(decode, Role::kDecode);
}

TEST_P(EngineFormatsTest, CancelInEveryPhaseOfOneEngineGivesEverythingBack) {
  RealEngine engine(*checkpoint_, Role::kBoth, /*chunk=*/16, 16, kLarge);
  const std::vector<std::function<void(const RecordingListener&)>> phases = {
      [](const RecordingListener&) {},  // queued, or just admitted
      [](const RecordingListener& l) { Eventually([&] { return !l.progress().empty(); }); },
      [](const RecordingListener& l) { Eventually([&] { return l.progress().size() > 8; }); },
      [](const RecordingListener& l) { l.AwaitTokens(1); },
      [](const RecordingListener& l) { l.AwaitTokens(9); },
  };
  for (size_t phase = 0; phase < phases.size(); ++phase) {
    for (const int32_t n : {1, 2}) {
      const auto listener = std::make_shared<RecordingListener>();
      GenerateRequest request = Request("r", n);
      request.sampling.max_tokens = kEndless;
      ASSERT_TRUE(engine.engine->Submit(std::move(request), listener).ok());
      phases[phase](*listener);
      engine.engine->Cancel("r", absl::CancelledError("enough"));
      ASSERT_TRUE(listener->AwaitDone());
      EXPECT_EQ(listener->status().code(), absl::StatusCode::kCancelled) << "phase " << phase;
      ASSERT_TRUE(Eventually([&] { return engine.AtBaseline(); })) << "phase " << phase;
    }
  }
  ExpectBaseline(engine, Role::kBoth);
}

TEST_P(EngineFormatsTest, CancelInEveryPhaseOfAHandOffGivesEverythingBack) {
  RealEngine prefill(*checkpoint_, Role::kPrefill, /*chunk=*/16, 16, kSmall);
  RealEngine decode(*checkpoint_, Role::kDecode, 16, 16, kLarge);
  const std::vector<std::function<void(const Split&)>> phases = {
      [](const Split&) {},
      [](const Split& s) { Eventually([&] { return !s.head->progress().empty(); }); },
      [](const Split& s) { Eventually([&] { return s.head->progress().size() > 8; }); },
      [](const Split& s) { s.head->AwaitDone(); },
      [](const Split& s) { s.tail->AwaitTokens(9); },
  };
  for (size_t phase = 0; phase < phases.size(); ++phase) {
    for (const int32_t n : {1, 2}) {
      GenerateRequest request = Request("r", n);
      request.sampling.max_tokens = kEndless;
      const Split split = Start(prefill, decode, std::move(request));
      phases[phase](split);
      decode.engine->Cancel("r", absl::CancelledError("enough"));
      prefill.engine->Cancel("r", absl::CancelledError("enough"));
      ASSERT_TRUE(split.head->AwaitDone() && split.tail->AwaitDone());
      EXPECT_EQ(split.tail->status().code(), absl::StatusCode::kCancelled) << "phase " << phase;
      ASSERT_TRUE(Eventually([&] { return prefill.AtBaseline() && decode.AtBaseline(); }))
          << "phase " << phase;
    }
  }
  // Only reserved: nobody ever prefills.
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(Reserve(*decode.engine, "r", kPromptTokens, Params(2, kEndless), listener).ok());
  EXPECT_TRUE(Eventually([&] { return decode.engine->load().reservations == 1; }));
  decode.engine->Cancel("r", absl::CancelledError("enough"));
  ASSERT_TRUE(listener->AwaitDone());
  ExpectBaseline(prefill, Role::kPrefill);
  ExpectBaseline(decode, Role::kDecode);
}

TEST_P(EngineFormatsTest, ARequestThatCanNeverFitIsRefusedByName) {
  RealEngine both(*checkpoint_, Role::kBoth, 64, 64, kSmall);
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  const auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request = Request("r", 16);
  request.sampling.max_tokens = 2000;
  const absl::Status submitted = both.engine->Submit(std::move(request), listener);
  EXPECT_EQ(submitted.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(submitted.message()), HasSubstr("EXCEEDS_CAPACITY"));
  const absl::Status reserved =
      Reserve(*decode.engine, "r", kPromptTokens, Params(16, 2000), listener).status();
  EXPECT_EQ(reserved.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(reserved.message()), HasSubstr("EXCEEDS_CAPACITY"));
  EXPECT_TRUE(both.AtBaseline() && decode.AtBaseline());
}

TEST_P(EngineFormatsTest, AFullPoolRefusesReservationsNowAndServesThemLater) {
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  std::vector<std::shared_ptr<RecordingListener>> granted;
  absl::Status status;
  while (granted.size() < 16) {
    const auto listener = std::make_shared<RecordingListener>();
    status =
        Reserve(*decode.engine, absl::StrCat(granted.size()), kPromptTokens, Params(1), listener)
            .status();
    if (!status.ok()) {
      break;
    }
    granted.push_back(listener);
  }
  ASSERT_GT(granted.size(), 0u);
  ASSERT_LT(granted.size(), 16u) << "the pool is too large for this test";
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("KV_POOL_FULL"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(policy()));
  decode.engine->Cancel("0", absl::CancelledError("room"));
  ASSERT_TRUE(granted[0]->AwaitDone());
  const auto listener = std::make_shared<RecordingListener>();
  EXPECT_TRUE(Eventually(
      [&] { return Reserve(*decode.engine, "again", kPromptTokens, Params(1), listener).ok(); }));
  for (size_t i = 1; i < granted.size(); ++i) {
    decode.engine->Cancel(absl::StrCat(i), absl::CancelledError("done"));
  }
  decode.engine->Cancel("again", absl::CancelledError("done"));
  ExpectBaseline(decode, Role::kDecode);
}

TEST_P(EngineFormatsTest, RequestsWaitForAFullPoolAndAllRun) {
  RealEngine engine(*checkpoint_, Role::kBoth, 64, 128, kSmall);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (int i = 0; i < 6; ++i) {
    listeners.push_back(std::make_shared<RecordingListener>());
    ASSERT_TRUE(engine.engine->Submit(Request(absl::StrCat(i), 1), listeners.back()).ok());
  }
  for (const auto& listener : listeners) {
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    EXPECT_EQ(listener->tokens(), listeners.front()->tokens());
  }
  ExpectBaseline(engine, Role::kBoth);
}

TEST_P(EngineFormatsTest, ACommitWithABadStateLeavesTheReservationOpen) {
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 64, kSmall);
  const std::vector<std::string> wrong = {
      "x", std::string(7, '\0'), std::string(100000, '\xff'), std::string(192, '\xff')};
  const auto tried = std::make_shared<Tried>();
  const Split split = Start(prefill, decode, Request("r", 2), wrong, tried);
  ASSERT_TRUE(split.head->AwaitDone() && split.tail->AwaitDone());
  EXPECT_TRUE(split.tail->status().ok()) << split.tail->status();
  ASSERT_EQ(tried->answers.size(), wrong.size());
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(tried->answers[i].code(), absl::StatusCode::kInvalidArgument) << tried->answers[i];
    EXPECT_EQ(tried->open[i], 1);
  }
  RealEngine one(*checkpoint_, Role::kBoth, 64, 64, kSmall);
  const auto whole = std::make_shared<RecordingListener>();
  ASSERT_TRUE(one.engine->Submit(Request("r", 2), whole).ok());
  ASSERT_TRUE(whole->AwaitDone());
  EXPECT_EQ(split.tokens(0), whole->tokens(0));
  EXPECT_EQ(split.tokens(1), whole->tokens(1));
  ExpectBaseline(decode, Role::kDecode);
}

// The state is right but the pages are not. shadowkv has ids there, and refuses them: nothing was
// decoded, and nothing is kept. Whatever the pages of diffkv hold are numbers to compute with.
TEST_P(EngineFormatsTest, ACommitOfRubbishPagesNeverGoesBeyondThem) {
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = Reserve(*decode.engine, "r", kPromptTokens, Params(1), listener);
  ASSERT_TRUE(grant.ok()) << grant.status();
  for (const std::span<std::byte> piece : grant->memory) {
    std::fill(piece.begin(), piece.end(), std::byte{0x3c});  // finite as fp16 and fp32
  }
  CommitInfo info;
  info.first_tokens.resize(1);
  if (diffkv()) {
    // 50 tokens in each tier of each head; 2 KV heads.
    const int64_t layers =
        static_cast<int64_t>(BytesOf(grant->memory)) / (grant->pages_per_layer * grant->page_bytes);
    for (int64_t i = 0; i < layers * 2 * 2; ++i) {
      info.kv_state += std::string("\x32\0\0\0", 4);
    }
  }
  absl::Notification answered;
  absl::Status status;
  decode.engine->BeginAttempt(grant->reservation_id, grant->epoch, 1, [](const absl::Status&) {});
  decode.engine->Commit(
      grant->reservation_id, grant->epoch, 1, std::move(info), [&](absl::Status answer) {
        status = std::move(answer);
        answered.Notify();
      });
  answered.WaitForNotification();
  ASSERT_TRUE(listener->AwaitDone());
  if (diffkv()) {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(listener->tokens().size(), static_cast<size_t>(kMaxTokens - 1)) << listener->status();
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(listener->status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(listener->tokens().empty());
  }
  ExpectBaseline(decode, Role::kDecode);
}

// Catalogue T5: encoded pages that a sink still reads are never given to anybody else.
TEST_P(EngineFormatsTest, PagesStayWhileASinkReadsThem) {
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto slow = std::make_shared<RecordingListener>();
  std::thread late;
  {
    RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 64, kSmall);
    GenerateRequest request = Request("slow", 1);
    request.sink = std::make_unique<FakeSink>(log);
    ASSERT_TRUE(prefill.engine->Submit(std::move(request), slow).ok());
    ASSERT_TRUE(log->AwaitEnd());
    // Others take what is free, over and over.
    for (int i = 0; i < 8; ++i) {
      const auto listener = std::make_shared<RecordingListener>();
      GenerateRequest other = Request("other", 1);
      other.prompt = Prompt(kPromptTokens, i);
      other.sink = std::make_unique<AcceptingSink>();
      ASSERT_TRUE(prefill.engine->Submit(std::move(other), listener).ok());
      ASSERT_TRUE(listener->AwaitDone());
      EXPECT_TRUE(listener->status().ok()) << listener->status();
    }
    EXPECT_FALSE(slow->done());
    // It answers while the engine shuts down.
    late = std::thread([&] {
      slow->AwaitDone();
      log->Answer(absl::OkStatus(), 0);  // compares every byte with what was handed over
    });
  }
  late.join();
  EXPECT_EQ(slow->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(log->pages().empty());
  EXPECT_EQ(log->errors(), 0);
}

TEST_P(EngineFormatsTest, BothSidesDescribeTheSameHandOff) {
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64, kSmall);
  RealEngine prefill(
      *checkpoint_, Role::kPrefill, 64, 64, {.diffkv_bytes = 1 << 20, .shadowkv_bytes = 2 << 20});
  for (const int64_t tokens : {1, 100, kPromptTokens, 4000}) {
    const auto ours = decode.engine->DescribeHandoff(policy(), tokens);
    const auto theirs = prefill.engine->DescribeHandoff(policy(), tokens);
    ASSERT_TRUE(ours.ok() && theirs.ok()) << ours.status() << theirs.status();
    EXPECT_EQ(ours->policy, theirs->policy);
    EXPECT_EQ(ours->format, theirs->format);
    EXPECT_EQ(ours->format_version, theirs->format_version);
    EXPECT_EQ(ours->window, theirs->window);
    // What prefill is told is what decode came to: that must come to the same again.
    EXPECT_EQ(prefill.engine->DescribeHandoff(ours->policy, tokens)->policy, ours->policy);
  }
  EXPECT_EQ(decode.engine->DescribeHandoff(policy(), kPromptTokens)->policy, policy());
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, int64_t{32769}, int64_t{1} << 32}) {
    EXPECT_EQ(decode.engine->DescribeHandoff(policy(), tokens).status().code(),
              absl::StatusCode::kInvalidArgument)
        << tokens;
    EXPECT_EQ(Reserve(*decode.engine, "r", tokens, Params(1), std::make_shared<RecordingListener>())
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << tokens;
  }
}

std::string NameOf(const testing::TestParamInfo<EngineFormatsTest::ParamType>& instance) {
  std::string name = absl::StrCat(std::get<0>(instance.param), "_", std::get<1>(instance.param));
  std::replace_if(name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    EngineFormatsTest,
    testing::Combine(testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("diffkv",
                                     "diffkv:ah=2,al=0.5,score=all,w=16,sinks=2",
                                     "shadowkv:rank=32,budget=48,outliers=2,local=2")),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    SwiftKvModels,
    EngineFormatsTest,
    testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("shadowkv:rank=32,budget=48,outliers=2,local=2,joint=80")),
    NameOf);

}  // namespace
}  // namespace baton::engine
