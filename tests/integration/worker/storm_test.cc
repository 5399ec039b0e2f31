// A thousand requests in every KV format, alone and as turns of conversations, sixteen at once,
// many of them cancelled: each that ends says what it says alone, and nothing stays behind.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

constexpr unsigned kSeed = 20240617;
constexpr char kRepeat[] = "; repeat: ctest -R StormTest.MixedFormats";

constexpr int kRequests = 1000;
constexpr int kThreads = 16;
// Longer than a caller thinks between two turns, shorter than the storm.
constexpr absl::Duration kKeptTtl = absl::Seconds(2);
constexpr int kKeptSessions = 8;

// Of a prompt that takes the whole pools of the prefill worker.
constexpr int kWholePool = 480;
constexpr int kSmallPrompt = 60;
// Small prompts that the decode worker's pools of encoded formats hold.
constexpr int kSmallPrompts = 12;

constexpr char kBase[] = "tiny-llama-needle";
constexpr char kSwiftKv[] = "tiny-llama-needle-swiftkv-l6";
constexpr char kShadowKv[] = "shadowkv:rank=8,budget=8,outliers=1,local=1";

// `shadowkv` keeps prompts as short as these dense.
std::vector<std::string> PoliciesOf(const std::string& model) {
  std::vector<std::string> policies = {
      "dense",
      "fp8",
      "diffkv",
      "diffkv:ah=2,al=0.5,w=8",
      kShadowKv,
      "shadowkv:rank=16,chunk=1,sel=q2,budget=8,outliers=0,local=4,a=int8",
      "shadowkv",
      "tier=exact",
      "tier=high",
      "tier=balanced",
      "tier=economy",
      "auto"};
  if (model == kSwiftKv) {
    policies.insert(policies.end(),
                    {"hidden+dense",
                     "hidden8+dense",
                     "hidden+diffkv:ah=2,al=0.5,w=8",
                     "hidden8+diffkv",
                     absl::StrCat("hidden+", kShadowKv),
                     absl::StrCat(kShadowKv, ",joint=20"),
                     absl::StrCat("hidden8+", kShadowKv, ",joint=20")});
  }
  return policies;
}

// Pages of all layers and heads that prompt and generated tokens may take in format diffkv at 4,096
// bytes each; 2 KV heads, 32 tokens to a page of the high tier.
constexpr int64_t DiffKvBytes(int64_t layers, int64_t prompt_tokens, int64_t max_tokens) {
  const int64_t growth = max_tokens == 0 ? 0 : (max_tokens + 31) / 32 + 1;
  return layers * 2 * ((prompt_tokens + 31) / 32 + 1 + growth) * 4096;
}

// What a caller does: a single request or the turns of a conversation. Every policy has one kind of
// conversation and two of single requests, with one answer and with two.
struct Kind {
  static constexpr size_t kPerPolicy = 3;
  static constexpr int kTurns = 3;

  size_t number = 0;
  std::string policy;
  bool conversation() const { return number % kPerPolicy == 0; }
  int turns() const { return conversation() ? kTurns : 1; }
  uint32_t answers() const { return number % kPerPolicy == 2 ? 2 : 1; }
};

// The kind's turn `turn`, after `said`.
Request TurnOf(const Kind& kind, int turn, std::vector<int32_t> said) {
  std::mt19937 random(kSeed + static_cast<unsigned>(kind.number) * 8 + static_cast<unsigned>(turn));
  const auto new_tokens = static_cast<int>(turn == 0 ? 8 + random() % 70 : 1 + random() % 40);
  Request request = GreedyRequest("", new_tokens, 1 + static_cast<uint32_t>(random() % 6));
  std::shuffle(request.prompt.begin(), request.prompt.end(), random);
  request.prompt.insert(request.prompt.begin(), said.begin(), said.end());
  request.kv_policy = kind.policy;
  request.sampling.set_temperature(0.7f);
  request.sampling.set_seed(kind.number);
  request.sampling.set_n(kind.answers());
  return request;
}

std::vector<int32_t> SaidAfter(const Request& request, const Outcome& outcome) {
  std::vector<int32_t> said = request.prompt;
  said.insert(said.end(), outcome.tokens.front().begin(), outcome.tokens.front().end());
  return said;
}

// Nothing but KV for next turns lies in the pools: what is not free is what the gauges call kept.
bool HoldsOnlyKept(worker::Worker& worker) {
  return Eventually([&] {
    const engine::EngineLoad load = worker.engine().load();
    int64_t encoded = 0;
    for (const engine::FormatPool& pool : load.format_pools) {
      encoded += pool.format == "hidden" ? 0 : pool.bytes.total - pool.bytes.free;
    }
    const auto page_bytes = static_cast<int64_t>(worker.engine().page_layout().page_bytes());
    const int64_t dense = load.kept_bytes - encoded;
    return worker.idle() && !load.has_work && load.pages_free == load.pages_total &&
           load.pages_reserved == 0 && dense >= 0 && dense % page_bytes == 0 &&
           (load.kept_sessions > 0) == (load.kept_bytes > 0);
  });
}

class StormTest : public testing::TestWithParam<std::string> {
 protected:
  // Where a request is cancelled; kNever: nowhere.
  enum class Cancel { kReserved, kPrefilling, kCommitted, kDecoding, kAnyMoment, kNever };

  void SetUp() override {
    worker::WorkerOptions options = TinyOptions(engine::Role::kBoth);
    options.model_dir = std::string(BATON_SOURCE_DIR) + "/tests/data/models/" + GetParam();
    options.engine.max_running_sequences = 40;
    options.engine.max_kept_sessions = kKeptSessions;
    options.engine.kept_ttl = kKeptTtl;
    options.pools.fp8 = 16 << 20;
    options.pools.hidden = GetParam() == kSwiftKv ? 4 << 20 : 0;
    both_ = StartDecode(options);
    ASSERT_NE(both_, nullptr);
    decode_ = StartDecode(OfRoleDecode(options));
    prefill_ = StartPrefill(OfRolePrefill(options));
    ASSERT_TRUE(decode_ != nullptr && prefill_ != nullptr);
    for (const std::string& policy : PoliciesOf(GetParam())) {
      for (size_t i = 0; i < Kind::kPerPolicy; ++i) {
        kinds_.push_back({.number = kinds_.size(), .policy = policy});
      }
    }
  }

  int64_t Layers() const { return both_->worker().engine().model().kv_shape().layers; }
  worker::WorkerOptions OfRoleDecode(worker::WorkerOptions options) const {
    options.engine.role = engine::Role::kDecode;
    options.engine.lease = absl::Minutes(5);  // nobody renews here
    options.pools.diffkv = kSmallPrompts * DiffKvBytes(Layers(), kSmallPrompt, 4);
    options.pools.fp8 = 4 << 20;
    return options;
  }
  worker::WorkerOptions OfRolePrefill(worker::WorkerOptions options) const {
    options.engine.role = engine::Role::kPrefill;
    options.pools.diffkv = DiffKvBytes(Layers(), kWholePool, 0);
    const auto shape = both_->worker().engine().DescribeHandoff(kShadowKv, kWholePool);
    EXPECT_TRUE(shape.ok()) << shape.status();
    options.pools.shadowkv = (Layers() * shape->window.page_bytes + 4095) / 4096 * 4096;
    if (GetParam() == kSwiftKv) {
      const auto hidden = both_->worker().engine().DescribeHandoff("hidden+diffkv", kWholePool);
      EXPECT_TRUE(hidden.ok()) << hidden.status();
      options.pools.hidden =
          (hidden->hidden_pages * hidden->hidden_page_bytes + 4095) / 4096 * 4096;
    }
    return options;
  }

  // Alone, and where possible in the other role: hidden states are only coded between workers.
  Outcome Ask(const Request& request) {
    return absl::StartsWith(request.kv_policy, "hidden") || !request.session_id.empty()
               ? RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request)
               : RunBoth(ChannelTo(both_->worker()), request);
  }
  // Takes down what a kind answers alone, whichever of its turns go on from kept KV.
  void Rehearse(const Kind& kind) {
    for (int fresh = 0; fresh < (kind.conversation() ? 4 : 1); ++fresh) {
      std::vector<int32_t> said;
      std::string path;
      for (int turn = 0; turn < kind.turns(); ++turn) {
        Request request = TurnOf(kind, turn, said);
        request.id = "alone";
        if (turn == 0 || ((fresh >> (turn - 1)) & 1) != 0) {
          ++sessions_;
        }
        request.session_id = kind.conversation() ? absl::StrCat("alone-", sessions_) : "";
        const Outcome outcome = Ask(request);
        ASSERT_TRUE(outcome.status.ok()) << kind.policy << ": " << outcome.status;
        path += outcome.usage.cached_tokens() > 0 ? 'k' : 'f';
        answers_[{kind.number, path}] = outcome.tokens;
        said = SaidAfter(request, outcome);
      }
    }
  }

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
  std::map<std::string, int> CountAllReservations() {
    std::map<std::string, int> counts;
    for (const std::string& policy : PoliciesOf(GetParam())) {
      counts[policy] = CountReservations(policy);
    }
    return counts;
  }
  bool AllAtBaseline() {
    return AtBaseline(prefill_->worker()) && AtBaseline(decode_->worker()) &&
           AtBaseline(both_->worker()) && decode_->landing().open_reservations() == 0;
  }
  std::vector<std::map<std::string, double>> AllGauges() {
    return {Gauges(prefill_->worker()), Gauges(decode_->worker()), Gauges(both_->worker())};
  }

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
        ADD_FAILURE() << request.kv_policy << ": " << status;
        return nullptr;
      }
      absl::SleepFor(absl::Milliseconds(3));
    }
  }
  // What came until the request ended or was cancelled, which ends the calls.
  Outcome RunOne(const Request& request, Cancel cancel, absl::Duration moment) {
    Outcome outcome = EmptyOutcome(request);
    outcome.status = absl::CancelledError();
    worker::v1::Reserved reserved;
    const auto decode = Reserve(request, reserved);
    if (decode == nullptr || cancel == Cancel::kReserved) {
      return outcome;
    }
    std::thread canceller;
    if (cancel == Cancel::kAnyMoment) {
      canceller = std::thread([&decode, moment] {
        absl::SleepFor(moment);
        decode->Cancel();
      });
    }
    if (reserved.local_prefill() || RunPrefill(request, reserved, cancel, outcome)) {
      RunDecode(*decode, cancel, outcome);
    }
    if (canceller.joinable()) {
      canceller.join();
    }
    ReleaseKv(ChannelTo(prefill_->worker()), request.id);
    return outcome;
  }
  // Whether the prompt has been handed over and decode is to be read.
  bool RunPrefill(const Request& request,
                  const worker::v1::Reserved& reserved,
                  Cancel cancel,
                  Outcome& outcome) {
    PrefillCall prefill(ChannelTo(prefill_->worker()), request, reserved);
    if (cancel == Cancel::kPrefilling) {
      prefill.ReadUntilProgress();
      return false;
    }
    prefill.ReadAll(outcome);
    EXPECT_TRUE(outcome.status.ok() || cancel == Cancel::kAnyMoment)
        << request.kv_policy << ": " << outcome.status;
    return outcome.status.ok();
  }
  static void RunDecode(DecodeCall& decode, Cancel cancel, Outcome& outcome) {
    worker::v1::DecodeEvent event;
    const bool stays = cancel == Cancel::kNever || cancel == Cancel::kAnyMoment;
    if (!stays) {
      if (cancel == Cancel::kDecoding && decode.Read(&event) && event.has_tokens()) {
        for (const auto& token : event.tokens().tokens()) {
          outcome.tokens.at(event.tokens().index()).push_back(token.id());
        }
      }
      outcome.status = absl::CancelledError();
      return;
    }
    decode.ReadAll(outcome);
  }

  // A cancelled turn is followed by the next one, on what its caller got to read.
  void Converse(const Kind& kind, std::mt19937& random) {
    const std::string session =
        kind.conversation() ? absl::StrCat("storm-", conversations_++) : std::string();
    std::vector<int32_t> said;
    std::string path;
    bool cancelled = false;
    for (int turn = 0; turn < kind.turns(); ++turn) {
      Request request = TurnOf(kind, turn, said);
      request.id = absl::StrCat("storm-", requests_++);
      request.session_id = session;
      const auto cancel = random() % 3 == 0 ? static_cast<Cancel>(random() % 5) : Cancel::kNever;
      const Outcome outcome = RunOne(request, cancel, absl::Microseconds(random() % 100000));
      said = SaidAfter(request, outcome);
      if (!outcome.status.ok()) {
        EXPECT_NE(cancel, Cancel::kNever) << kind.policy << ": " << outcome.status;
        cancelled = true;
        continue;
      }
      const bool kept = outcome.usage.cached_tokens() > 0;
      path += kept ? 'k' : 'f';
      ++completed_;
      kept_turns_ += kept ? 1 : 0;
      resumed_turns_ += kept && cancelled ? 1 : 0;
      if (!cancelled) {  // else it depends on how far the cancelled turn came
        EXPECT_EQ(outcome.tokens, answers_.at({kind.number, path})) << kind.policy << " " << path;
      }
    }
  }
  void Storm() {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([this, thread] {
        std::mt19937 random(kSeed * 31 + static_cast<unsigned>(thread));
        while (requests_ < kRequests) {
          Converse(kinds_[random() % kinds_.size()], random);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  std::unique_ptr<decode::DecodeServer> both_;
  std::unique_ptr<decode::DecodeServer> decode_;
  std::unique_ptr<prefill::PrefillServer> prefill_;
  std::vector<Kind> kinds_;
  // Of each kind by its turns so far: from kept KV (k) or fresh (f).
  std::map<std::pair<size_t, std::string>, std::vector<std::vector<uint32_t>>> answers_;
  int sessions_ = 0;
  std::atomic<int> requests_{0};
  std::atomic<int> conversations_{0};
  std::atomic<int> completed_{0};
  std::atomic<int> kept_turns_{0};
  std::atomic<int> resumed_turns_{0};
};

TEST_P(StormTest, MixedFormatsAndCancelsLeaveNothingBehind) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed, kRepeat));
  for (const Kind& kind : kinds_) {
    ASSERT_NO_FATAL_FAILURE(Rehearse(kind));
  }
  ASSERT_TRUE(AllAtBaseline());
  const std::map<std::string, int> reservations = CountAllReservations();
  EXPECT_EQ(reservations.at("diffkv"), kSmallPrompts);
  const auto gauges = AllGauges();

  Storm();
  EXPECT_GT(completed_, kRequests / 2);
  EXPECT_GT(kept_turns_, kRequests / 20);
  EXPECT_GT(resumed_turns_, 0);
  RecordProperty("completed", completed_);
  RecordProperty("turns_from_kept_kv", kept_turns_);
  RecordProperty("of_these_after_a_cancelled_turn", resumed_turns_);

  EXPECT_TRUE(HoldsOnlyKept(decode_->worker()));
  ASSERT_TRUE(AllAtBaseline());
  EXPECT_EQ(AllGauges(), gauges);
  EXPECT_EQ(CountAllReservations(), reservations);
  for (const std::string& policy : {std::string("diffkv"), std::string(kShadowKv)}) {
    Request whole = GreedyRequest("whole", kWholePool, 4);
    whole.kv_policy = policy;
    whole.deadline = absl::Now() + absl::Seconds(60);
    const Outcome outcome =
        RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), whole);
    EXPECT_TRUE(outcome.status.ok()) << policy << ": " << outcome.status;
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         StormTest,
                         testing::Values(kBase, kSwiftKv),
                         [](const testing::TestParamInfo<std::string>& model) {
                           return std::string(model.param == kBase ? "Base" : "SwiftKv");
                         });

}  // namespace
}  // namespace baton
