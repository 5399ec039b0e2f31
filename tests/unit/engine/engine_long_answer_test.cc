// Answers of many tokens in encoded formats over a real model: what the pools say at every token.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

constexpr int32_t kPromptTokens = 300;
constexpr int32_t kAnswerTokens = BATON_LONG_ANSWER_TOKENS;

// Takes the engine's load down at every token. Called by the engine thread until done is notified.
class LoadListener final : public RequestListener {
 public:
  explicit LoadListener(const Engine& engine) : engine_(engine) {}
  void OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) override {}
  void OnTokens(int32_t /*index*/, std::span<const TokenOutput> tokens) override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      loads.push_back(engine_.load());
    }
  }
  void OnFinished(int32_t /*index*/, const SequenceFinish& /*finish*/) override {}
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    end = status;
    totals = stats;
    done.Notify();
  }

  std::vector<EngineLoad> loads;
  absl::Status end;
  RequestStats totals;
  absl::Notification done;

 private:
  const Engine& engine_;
};

const FormatPool& PoolOf(const EngineLoad& load, const std::string& format) {
  for (const FormatPool& pool : load.format_pools) {
    if (pool.format == format) {
      return pool;
    }
  }
  ADD_FAILURE() << "no pool " << format;
  return load.format_pools.front();
}

class EngineLongAnswerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = checkpoint::Checkpoint::Open(
        BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle-swiftkv-l6-across2", {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }
  std::unique_ptr<RealEngine> Start(Role role) const {
    return std::make_unique<RealEngine>(
        *checkpoint_,
        role,
        /*chunk=*/128,
        128,
        kv::CodecPools{
            .diffkv_bytes = 16 << 20, .shadowkv_bytes = 16 << 20, .hidden_bytes = 1 << 20});
  }
  // The resident form's name.
  static std::string Format() {
    std::string policy = GetParam();
    policy = policy.substr(0, policy.find(':'));
    return policy.substr(policy.find('+') + 1);
  }
  static GenerateRequest Request() {
    GenerateRequest request;
    request.request_id = "long";
    for (int32_t i = 0; i < kPromptTokens; ++i) {
      request.prompt.push_back((i * i * 31 + i * 7) % 4000);
    }
    request.sampling.max_tokens = kAnswerTokens;
    request.kv_policy = GetParam();
    return request;
  }

  // From the first decoded token on, whose load was published before its step, the pools hold the
  // same bytes of the answer's format and nothing else.
  static void ExpectSteadyPools(const LoadListener& listener) {
    const std::string format = Format();
    const kv::PoolBytes held = PoolOf(listener.loads[2], format).bytes;
    EXPECT_GE(held.total - held.free, listener.totals.kv_resident_bytes);
    for (size_t i = 2; i < listener.loads.size(); ++i) {
      const EngineLoad& load = listener.loads[i];
      for (const FormatPool& pool : load.format_pools) {
        const int64_t free = pool.format == format ? held.free : pool.bytes.total;
        ASSERT_EQ(pool.bytes.free, free) << pool.format << " at token " << i;
      }
      ASSERT_EQ(load.pages_free, load.pages_total) << "at token " << i;
    }
  }
  static void ExpectBaseline(const RealEngine& engine) {
    for (int i = 0; i < 10000 && !engine.AtBaseline(); ++i) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(engine.AtBaseline());
    for (const FormatPool& pool : engine.engine->load().format_pools) {
      EXPECT_EQ(pool.bytes.free, pool.bytes.total) << pool.format;
    }
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

// What the prompt did not need went back with the first token; the rest is neither given up early
// nor taken again, and no dense page is held while the answer is generated.
TEST_P(EngineLongAnswerTest, PoolsHoldTheSameBytesFromTheFirstTokenToTheLast) {
  const auto engine = Start(Role::kBoth);
  const auto listener = std::make_shared<LoadListener>(*engine->engine);
  const absl::Status submitted = engine->engine->Submit(Request(), listener);
  ASSERT_TRUE(submitted.ok()) << submitted;
  ASSERT_TRUE(listener->done.WaitForNotificationWithTimeout(absl::Seconds(110)));
  ASSERT_TRUE(listener->end.ok()) << listener->end;
  ASSERT_EQ(listener->loads.size(), size_t{kAnswerTokens});
  EXPECT_EQ(listener->totals.kv_policy.substr(0, Format().size()), Format());
  ExpectSteadyPools(*listener);
  ExpectBaseline(*engine);
}

class EngineLandedAnswerTest : public EngineLongAnswerTest {};

// The same where the prompt landed as hidden states: neither they nor the pages in which the upper
// layers were made from them outlive that.
TEST_P(EngineLandedAnswerTest, PoolsHoldTheSameBytesFromTheFirstTokenToTheLast) {
  const auto prefill = Start(Role::kPrefill);
  const auto decode = Start(Role::kDecode);
  GenerateRequest request = Request();
  const auto head = std::make_shared<RecordingListener>();
  const auto tail = std::make_shared<LoadListener>(*decode->engine);
  ReserveRequest reserve;
  reserve.request_id = request.request_id;
  reserve.prompt_tokens = kPromptTokens;
  reserve.sampling = request.sampling;
  reserve.kv_policy = request.kv_policy;
  const absl::Status reserved = decode->engine->Reserve(
      std::move(reserve), tail, [&](absl::StatusOr<ReservationGrant> grant) {
        ASSERT_TRUE(grant.ok()) << grant.status();
        EXPECT_GT(grant->hidden_pages, 0);
        request.sink = std::make_unique<CopySink>(*decode->engine, *std::move(grant));
        const absl::Status submitted = prefill->engine->Submit(std::move(request), head);
        EXPECT_TRUE(submitted.ok()) << submitted;
      });
  ASSERT_TRUE(reserved.ok()) << reserved;
  ASSERT_TRUE(tail->done.WaitForNotificationWithTimeout(absl::Seconds(110)));
  ASSERT_TRUE(tail->end.ok()) << tail->end;
  ASSERT_EQ(tail->loads.size(), size_t{kAnswerTokens} - 1);  // prefill delivered the first
  EXPECT_TRUE(head->AwaitDone());
  EXPECT_TRUE(head->status().ok()) << head->status();
  ExpectSteadyPools(*tail);
  ExpectBaseline(*decode);
  ExpectBaseline(*prefill);
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineLongAnswerTest,
    testing::Values("diffkv",
                    "diffkv:ah=2,al=0.5,policy=paper,w=16",
                    "shadowkv:rank=96,chunk=1,sel=q2,budget=64,outliers=0,local=32,a=int8",
                    "shadowkv:rank=96,chunk=1,sel=q2,budget=64,outliers=0,local=32,joint=160"),
    [](const testing::TestParamInfo<const char*>& instance) {
      return std::to_string(instance.index);
    });

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineLandedAnswerTest,
    testing::Values("hidden+diffkv:ah=2,al=0.5,w=16",
                    "hidden8+shadowkv:rank=96,chunk=1,sel=q2,budget=64,outliers=0,local=32,a=int8"),
    [](const testing::TestParamInfo<const char*>& instance) {
      return std::to_string(instance.index);
    });

}  // namespace
}  // namespace baton::engine
