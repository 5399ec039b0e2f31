// Requests in every KV format over prefill and decode workers, alone and many at once.
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

constexpr unsigned kSeed = 20240617;
constexpr const char* kShadowKv = "shadowkv:rank=8,budget=8,outliers=1,local=1";
// The last one keeps prompts as short as these dense.
const std::vector<std::string> kPolicies = {
    "dense", "diffkv", "diffkv:ah=2,al=0.5,w=8", kShadowKv, "shadowkv"};

// Pages of all layers and heads that prompt and generated tokens may take in format diffkv at 4,096
// bytes each; 12 layers, 2 KV heads, 32 tokens to a page of the high tier.
constexpr int64_t DiffKvBytes(int64_t prompt_tokens, int64_t max_tokens) {
  const int64_t growth = max_tokens == 0 ? 0 : (max_tokens + 31) / 32 + 1;
  return 12 * 2 * ((prompt_tokens + 31) / 32 + 1 + growth) * 4096;
}

class FormatsTest : public testing::Test {
 protected:
  // Of a prompt that takes the whole pools of the prefill worker.
  static constexpr int kWholePool = 480;
  static constexpr int kSmallPrompt = 60;

  void SetUp() override {
    worker::WorkerOptions options = TinyOptions(engine::Role::kBoth);
    options.engine.max_running_sequences = 40;
    both_ = StartDecode(options);
    ASSERT_NE(both_, nullptr);
    options.engine.role = engine::Role::kDecode;
    options.engine.lease = absl::Minutes(5);  // nobody renews here
    options.engine.codec_pools.diffkv_bytes = 12 * DiffKvBytes(kSmallPrompt, 4);
    decode_ = StartDecode(options);
    options.engine.role = engine::Role::kPrefill;
    options.engine.codec_pools.diffkv_bytes = DiffKvBytes(kWholePool, 0);
    const auto shape = both_->worker().engine().DescribeHandoff(kShadowKv, kWholePool);
    ASSERT_TRUE(shape.ok()) << shape.status();
    options.engine.codec_pools.shadowkv_bytes =
        (12 * shape->window.page_bytes + 4095) / 4096 * 4096;
    prefill_ = StartPrefill(options);
    ASSERT_TRUE(decode_ != nullptr && prefill_ != nullptr);
  }

  Outcome Split(const Request& request) {
    return RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request);
  }
  Outcome Both(const Request& request) { return RunBoth(ChannelTo(both_->worker()), request); }

  // How many small requests of a policy get a reservation at the same time.
  int CountReservations(const std::string& policy) {
    std::vector<std::unique_ptr<DecodeCall>> calls;
    while (true) {
      Request request = GreedyRequest(absl::StrCat("count-", calls.size()), kSmallPrompt, 4);
      request.kv_policy = policy;
      auto call = std::make_unique<DecodeCall>(
          ChannelTo(decode_->worker()), request, /*with_prompt=*/false);
      worker::v1::Reserved reserved;
      if (!call->ReadReserved(&reserved)) {
        EXPECT_EQ(call->Finish().code(), absl::StatusCode::kResourceExhausted);
        break;
      }
      calls.push_back(std::move(call));
    }
    const auto count = static_cast<int>(calls.size());
    calls.clear();
    EXPECT_TRUE(AtBaseline(decode_->worker()));
    return count;
  }

  std::unique_ptr<decode::DecodeServer> both_;
  std::unique_ptr<decode::DecodeServer> decode_;
  std::unique_ptr<prefill::PrefillServer> prefill_;
};

TEST_F(FormatsTest, SplitGivesTheTokensOfRoleBothAndNamesTheFormat) {
  for (const std::string& policy : kPolicies) {
    SCOPED_TRACE(policy);
    Request request = GreedyRequest("formats", 150, 20);
    request.kv_policy = policy;
    request.sampling.set_temperature(0.9f);
    request.sampling.set_seed(3);
    request.sampling.set_n(2);
    const Outcome split = Split(request);
    const Outcome both = Both(request);
    ASSERT_TRUE(split.status.ok()) << split.status;
    ASSERT_TRUE(both.status.ok()) << both.status;
    EXPECT_EQ(split.tokens, both.tokens);
    EXPECT_EQ(split.usage.kv_resident_bytes(), both.usage.kv_resident_bytes());
    if (policy != "dense" && policy != "shadowkv") {
      EXPECT_LT(split.committed.kv_wire_bytes(), split.committed.kv_logical_bytes());
    }
  }
}

TEST_F(FormatsTest, APolicyThatIsNotServedIsFailedPrecondition) {
  Request request = GreedyRequest("refused", 50, 4);
  request.kv_policy = "fp8";
  EXPECT_EQ(Split(request).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Both(request).status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* policy : {"int4", "hidden+diffkv"}) {  // the model is no SwiftKV model
    request.kv_policy = policy;
    EXPECT_EQ(Split(request).status.code(), absl::StatusCode::kInvalidArgument) << policy;
  }
}

// One of the kinds of requests that the storm below is made of.
Request Kind(size_t kind) {
  std::mt19937 random(kSeed + static_cast<unsigned>(kind));
  Request request = GreedyRequest(
      "", 8 + static_cast<int>(random() % 70), 1 + static_cast<uint32_t>(random() % 6));
  std::rotate(request.prompt.begin(),
              request.prompt.begin() + static_cast<ptrdiff_t>(kind % request.prompt.size()),
              request.prompt.end());
  request.kv_policy = kPolicies[kind % kPolicies.size()];
  request.sampling.set_temperature(0.7f);
  request.sampling.set_seed(kind);
  request.sampling.set_n(1 + static_cast<uint32_t>(kind % 2));
  return request;
}

class StormTest : public FormatsTest {
 protected:
  static constexpr size_t kKinds = 40;
  static constexpr int kRequests = 1000;
  static constexpr int kThreads = 16;

  // Where a request is cancelled; kNever: nowhere.
  enum class Cancel { kReserved, kPrefilling, kCommitted, kDecoding, kNever };

  // Full pools are expected: the request is tried again, as a router would.
  std::unique_ptr<DecodeCall> Reserve(const Request& request, worker::v1::Reserved& reserved) {
    while (true) {
      auto call = std::make_unique<DecodeCall>(
          ChannelTo(decode_->worker()), request, /*with_prompt=*/false);
      if (call->ReadReserved(&reserved)) {
        return call;
      }
      const absl::Status status = call->Finish();
      if (!absl::IsResourceExhausted(status) && !absl::IsAlreadyExists(status)) {
        ADD_FAILURE() << status;
        return nullptr;
      }
      absl::SleepFor(absl::Milliseconds(3));
    }
  }
  void RunOne(int number, size_t kind, Cancel cancel) {
    Request request = Kind(kind);
    request.id = absl::StrCat("storm-", number);
    worker::v1::Reserved reserved;
    const auto decode = Reserve(request, reserved);
    if (decode == nullptr || cancel == Cancel::kReserved) {
      return;  // the call's end cancels it
    }
    Outcome outcome;
    outcome.tokens.resize(request.sampling.n());
    outcome.finished.resize(request.sampling.n());
    PrefillCall prefill(ChannelTo(prefill_->worker()), request, reserved);
    if (cancel == Cancel::kPrefilling) {
      prefill.ReadUntilProgress();
      return;
    }
    prefill.ReadAll(outcome);
    EXPECT_TRUE(outcome.status.ok()) << request.kv_policy << ": " << outcome.status;
    worker::v1::DecodeEvent event;
    if (cancel == Cancel::kCommitted || !outcome.status.ok() ||
        (cancel == Cancel::kDecoding && decode->Read(&event))) {
      return;
    }
    decode->ReadAll(outcome);
    EXPECT_TRUE(outcome.status.ok()) << request.kv_policy << ": " << outcome.status;
    EXPECT_EQ(outcome.tokens, expected_[kind]) << request.kv_policy << " kind " << kind;
    ++completed_;
  }

  std::vector<std::vector<std::vector<uint32_t>>> expected_;
  std::atomic<int> completed_{0};
};

TEST_F(StormTest, MixedFormatsAndCancelsLeaveNothingBehind) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    Request request = Kind(kind);
    request.id = "alone";
    const Outcome outcome = Both(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    expected_.push_back(outcome.tokens);
  }
  std::vector<int> before;
  for (const std::string& policy : kPolicies) {
    before.push_back(CountReservations(policy));
  }
  EXPECT_EQ(before[1], 12);
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(kSeed * 31 + static_cast<unsigned>(thread));
      for (int number = next++; number < kRequests; number = next++) {
        const auto cancel = random() % 3 == 0 ? static_cast<Cancel>(random() % 4) : Cancel::kNever;
        RunOne(number, random() % kKinds, cancel);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(completed_, kRequests / 2);
  ASSERT_TRUE(AtBaseline(prefill_->worker()));
  ASSERT_TRUE(AtBaseline(decode_->worker()));
  ASSERT_TRUE(AtBaseline(both_->worker()));
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    EXPECT_EQ(CountReservations(kPolicies[i]), before[i]) << kPolicies[i];
  }
  for (const std::string& policy : {std::string("diffkv"), std::string(kShadowKv)}) {
    Request whole = GreedyRequest("whole", kWholePool, 4);
    whole.kv_policy = policy;
    whole.deadline = absl::Now() + absl::Seconds(60);
    const Outcome outcome = Split(whole);
    EXPECT_TRUE(outcome.status.ok()) << policy << ": " << outcome.status;
  }
}

}  // namespace
}  // namespace baton
