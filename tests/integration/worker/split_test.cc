// Prefill and decode on separate workers give what one worker gives.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

class SplitTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    prefill_ = StartPrefill(TinyOptions(engine::Role::kPrefill)).release();
    decode_ = StartDecode(TinyOptions(engine::Role::kDecode)).release();
    both_ = StartDecode(TinyOptions(engine::Role::kBoth)).release();
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr && both_ != nullptr);
  }
  static void TearDownTestSuite() {
    delete prefill_;
    delete decode_;
    delete both_;
  }

  Outcome Split(const Request& request) {
    return RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request);
  }
  Outcome Both(const Request& request) { return RunBoth(ChannelTo(both_->worker()), request); }

  void ExpectSame(const Request& request) {
    const Outcome split = Split(request);
    const Outcome both = Both(request);
    ASSERT_TRUE(split.status.ok()) << split.status;
    ASSERT_TRUE(both.status.ok()) << both.status;
    EXPECT_EQ(split.tokens, both.tokens);
    for (size_t i = 0; i < split.finished.size(); ++i) {
      ASSERT_EQ(split.finished[i].size(), 1U) << "sequence " << i;
      ASSERT_EQ(both.finished[i].size(), 1U) << "sequence " << i;
      EXPECT_EQ(split.finished[i][0].SerializeAsString(), both.finished[i][0].SerializeAsString());
    }
    EXPECT_TRUE(split.has_usage && both.has_usage);
    EXPECT_EQ(split.usage.completion_tokens(), both.usage.completion_tokens());
  }

  static prefill::PrefillServer* prefill_;
  static decode::DecodeServer* decode_;
  static decode::DecodeServer* both_;
};

prefill::PrefillServer* SplitTest::prefill_ = nullptr;
decode::DecodeServer* SplitTest::decode_ = nullptr;
decode::DecodeServer* SplitTest::both_ = nullptr;

TEST_F(SplitTest, GreedyTokensEqualThoseOfRoleBothAtEveryLength) {
  for (const int prompt_tokens : {1, 2, 31, 32, 33, 127, 128, 129, 700}) {
    SCOPED_TRACE(prompt_tokens);
    ExpectSame(GreedyRequest("greedy", prompt_tokens, 12));
  }
}

// Catalogue T24
TEST_F(SplitTest, CountsOfOneTwoAndThreeTokensAreExact) {
  for (const uint32_t max_tokens : {1U, 2U, 3U}) {
    SCOPED_TRACE(max_tokens);
    const Request request = GreedyRequest("count", 50, max_tokens);
    ExpectSame(request);
    const Outcome outcome = Split(request);
    EXPECT_EQ(outcome.tokens[0].size(), max_tokens);
    EXPECT_EQ(outcome.usage.completion_tokens(), max_tokens);
    EXPECT_EQ(outcome.finished[0][0].reason(), worker::v1::FINISH_REASON_LENGTH);
  }
}

// Catalogue T25
TEST_F(SplitTest, FirstTokenThatIsAStopTokenEndsTheSequence) {
  Request request = GreedyRequest("stop", 50, 8);
  const uint32_t first = Both(request).tokens.at(0).at(0);
  request.sampling.add_stop_token_ids(first);
  ExpectSame(request);
  const Outcome outcome = Split(request);
  EXPECT_TRUE(outcome.tokens[0].empty());
  EXPECT_EQ(outcome.finished[0][0].reason(), worker::v1::FINISH_REASON_STOP);
  EXPECT_EQ(outcome.finished[0][0].stop_token_id(), first);
}

TEST_F(SplitTest, SampledSequencesWithPenaltiesEqualThoseOfRoleBoth) {
  Request request = GreedyRequest("sampled", 90, 16);
  request.sampling.set_temperature(0.9f);
  request.sampling.set_top_p(0.95f);
  request.sampling.set_repetition_penalty(1.2f);
  request.sampling.set_frequency_penalty(0.3f);
  request.sampling.set_seed(4711);
  request.sampling.set_n(3);
  ExpectSame(request);
}

TEST_F(SplitTest, AccountingNamesTransportAndBytes) {
  const Outcome outcome = Split(GreedyRequest("usage", 100, 4));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  // prompt tokens x layers x (K, V) x KV heads x head_dim x 2 bytes.
  constexpr uint64_t kLogicalBytes = uint64_t{100} * 12 * 2 * 2 * 64 * 2;
  EXPECT_EQ(outcome.committed.kv_logical_bytes(), kLogicalBytes);
  EXPECT_GE(outcome.committed.kv_wire_bytes(), kLogicalBytes);
  EXPECT_EQ(outcome.committed.transport(), "grpc");
  EXPECT_GT(outcome.usage.kv_resident_bytes(), 0U);
  const std::string prefill_metrics = prefill_->worker().metrics().registry().Text();
  EXPECT_NE(prefill_metrics.find("baton_kv_wire_bytes_total{format=\"dense\""), std::string::npos);
  EXPECT_NE(prefill_metrics.find("baton_requests_total{code=\"OK\""), std::string::npos);
  const std::string decode_metrics = decode_->worker().metrics().registry().Text();
  EXPECT_NE(decode_metrics.find("baton_kv_transport_info{model_name=\"tiny-llama-needle\","
                                "role=\"decode\",transport=\"grpc\"} 1"),
            std::string::npos);
}

TEST_F(SplitTest, ConcurrentRequestsDoNotDisturbEachOther) {
  constexpr int kRequests = 8;
  std::vector<Outcome> expected(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    expected[static_cast<size_t>(i)] = Both(GreedyRequest("alone", 20 + 17 * i, 10));
  }
  std::vector<Outcome> outcomes(kRequests);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&, i] {
      outcomes[static_cast<size_t>(i)] =
          Split(GreedyRequest(absl::StrCat("together-", i), 20 + 17 * i, 10));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, expected[i].tokens) << "request " << i;
  }
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  EXPECT_TRUE(AtBaseline(both_->worker()));
}

// Catalogue T5: pages that a transfer still reads are not given to the next prompt, however many
// wait for them.
TEST_F(SplitTest, PromptsThatShareASmallPoolDoNotDisturbEachOther) {
  worker::WorkerOptions options = TinyOptions(engine::Role::kPrefill);
  options.pools.dense = int64_t{4} << 20;  // 672 tokens: two of these prompts
  const auto prefill = StartPrefill(options);
  ASSERT_NE(prefill, nullptr);
  // Nobody renews here, and the last prompts wait long on a slow machine.
  worker::WorkerOptions decode_options = TinyOptions(engine::Role::kDecode);
  decode_options.engine.lease = absl::Minutes(5);
  const auto decode = StartDecode(decode_options);
  ASSERT_NE(decode, nullptr);
  const auto request = [](size_t i) {
    Request different = GreedyRequest(absl::StrCat("small-", i), 300, 6);
    std::rotate(different.prompt.begin(),
                different.prompt.begin() + static_cast<ptrdiff_t>(i),
                different.prompt.end());
    return different;
  };
  std::vector<Outcome> outcomes(16);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = RunSplit(ChannelTo(prefill->worker()), ChannelTo(decode->worker()), request(i));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, Both(request(i)).tokens) << "request " << i;
  }
  EXPECT_TRUE(AtBaseline(prefill->worker()));
  EXPECT_TRUE(AtBaseline(decode->worker()));
}

}  // namespace
}  // namespace baton
