// Prefill and decode on devices, joined in this process: the tokens of one engine on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/host_answer.h"
#include "tests/unit/engine/placed_engine.h"
#include "tests/unit/engine/recording_listener.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

constexpr int32_t kRequests = 3;

class EngineDeviceHandoffTest
    : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static const std::string& policy() { return std::get<1>(GetParam()); }

  std::vector<HostAnswer> OfTheHost() const {
    return AnswersOfTheHost(*checkpoint_, policy(), kRequests);
  }

  // To memory that is reserved now.
  static std::unique_ptr<KvSink> ReservedSink(Engine& decode,
                                              const GenerateRequest& request,
                                              const SplitRun& run) {
    auto grant = AwaitGrant(decode, ReserveFor(request), run.decode);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return std::make_unique<CopySink>(decode, *std::move(grant));
  }

  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = OpenModel(std::get<0>(GetParam()));
};

TEST_P(EngineDeviceHandoffTest, GivesTheTokensOfOneEngineWhereverItsSidesAre) {
  const std::vector<HostAnswer> want = OfTheHost();
  const std::vector<std::pair<Place, Place>> pairs = {{Place::kDevice, Place::kDevice},
                                                      {Place::kHost, Place::kDevice},
                                                      {Place::kDevice, Place::kHost}};
  for (const auto& [prefill_place, decode_place] : pairs) {
    for (const int32_t chunk : {37, 100}) {
      const PlacedEngine decode(*checkpoint_, Role::kDecode, decode_place, chunk);
      const PlacedEngine prefill(*checkpoint_, Role::kPrefill, prefill_place, chunk);
      std::vector<SplitRun> runs;
      runs.reserve(kRequests);
      for (int32_t salt = 0; salt < kRequests; ++salt) {
        runs.push_back(Split(prefill.engine(), decode.engine(), MakeRequest(policy(), salt)));
      }
      for (size_t i = 0; i < runs.size(); ++i) {
        runs[i].Await();
        EXPECT_EQ(runs[i].tokens(), want[i].tokens)
            << "request " << i << ", chunk " << chunk << ", prefill on a device "
            << prefill.on_device << ", decode on a device " << decode.on_device;
        EXPECT_EQ(runs[i].decode->stats().kv_resident_bytes, want[i].resident_bytes);
      }
      prefill.ExpectFree();
      decode.ExpectFree();
    }
  }
  EXPECT_EQ(kernels::GuardedMemory::Get().blocks(), 0);
}

TEST_P(EngineDeviceHandoffTest, GivesTheTokensOfOneEngineFromDeviceToDevice) {
  const std::vector<HostAnswer> want = OfTheHost();
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/37);
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/37);
  std::vector<SplitRun> runs;
  runs.reserve(kRequests);
  for (int32_t salt = 0; salt < kRequests; ++salt) {
    runs.push_back(Split(prefill.engine(),
                         decode.engine(),
                         MakeRequest(policy(), salt),
                         /*reads_devices=*/true));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].Await();
    EXPECT_EQ(runs[i].tokens(), want[i].tokens) << "request " << i;
  }
  prefill.ExpectFree();
  decode.ExpectFree();
}

// What is sent is the same to the byte, and stays until the sink has answered.
TEST_P(EngineDeviceHandoffTest, SinksGetTheBytesOfTheHostWhereTheyReadThem) {
  std::vector<std::shared_ptr<SinkLog>> logs;
  for (const auto& [place, reads_devices] : {std::pair(Place::kHost, false),
                                             std::pair(Place::kDevice, false),
                                             std::pair(Place::kDevice, true)}) {
    const PlacedEngine prefill(*checkpoint_, Role::kPrefill, place, /*chunk=*/64);
    logs.push_back(std::make_shared<SinkLog>(/*answers_at_once=*/false));
    GenerateRequest request = MakeRequest(policy(), 0);
    request.sink = std::make_unique<FakeSink>(logs.back(), reads_devices);
    const auto listener = std::make_shared<RecordingListener>();
    ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
    ASSERT_TRUE(logs.back()->AwaitEnd());
    if (prefill.on_device) {
      EXPECT_EQ(prefill.StagesNow(), !reads_devices);
    }
    for (const auto& [key, page] : logs.back()->pages()) {
      ASSERT_EQ(page.device != nullptr, reads_devices);
    }
    logs.back()->Answer(absl::OkStatus(), 1);
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    EXPECT_EQ(logs.back()->errors(), 0);
    prefill.ExpectFree();
  }
  const auto host = logs[0]->pages();
  for (const auto& log : logs) {
    ASSERT_TRUE(log->committed().has_value());
    EXPECT_EQ(log->committed()->kv_state, logs[0]->committed()->kv_state);
    const auto pages = log->pages();
    ASSERT_EQ(pages.size(), host.size());
    for (const auto& [key, page] : host) {
      const auto found = pages.find(key);
      ASSERT_NE(found, pages.end());
      EXPECT_EQ(found->second.copy, page.copy) << "layer " << key.first << ", page " << key.second;
    }
  }
}

TEST_P(EngineDeviceHandoffTest, ACancelledRequestGivesEverythingBack) {
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64);
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/16);
  const absl::Status reason = absl::CancelledError("enough");

  // Reserved, and nothing has come.
  auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(AwaitGrant(decode.engine(), ReserveFor(MakeRequest(policy(), 0)), listener).ok());
  EXPECT_TRUE(decode.StagesSomething());
  decode.engine().Cancel("0", reason);
  EXPECT_TRUE(listener->AwaitDone());
  decode.ExpectFree();

  // While the prompt is computed, on both sides.
  SplitRun run = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 0));
  EXPECT_TRUE(Eventually([&] { return !run.prefill->progress().empty(); }));
  prefill.engine().Cancel("0", reason);
  decode.engine().Cancel("0", reason);
  EXPECT_TRUE(run.prefill->AwaitDone());
  EXPECT_TRUE(run.decode->AwaitDone());
  prefill.ExpectFree();
  decode.ExpectFree();

  // Handed to a sink that does not answer yet.
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  GenerateRequest request = MakeRequest(policy(), 1);
  request.sink = std::make_unique<FakeSink>(log);
  listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
  ASSERT_TRUE(log->AwaitEnd());
  prefill.engine().Cancel("1", reason);
  EXPECT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(prefill.StagesSomething());
  log->Answer(reason, 0);
  EXPECT_EQ(log->errors(), 0);
  prefill.ExpectFree();

  // While it decodes; and committed a moment ago, so that its pages may not be on the device yet.
  for (const size_t tokens : {size_t{3}, size_t{0}}) {
    run = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 2));
    EXPECT_TRUE(run.prefill->AwaitDone());
    EXPECT_TRUE(run.decode->AwaitTokens(tokens));
    decode.engine().Cancel("2", reason);
    EXPECT_TRUE(run.decode->AwaitDone());
    decode.ExpectFree();
  }
}

// The client has the first token, and other prompts are computed, while pages still are on their
// way; nothing is committed and no memory comes back before they are there.
TEST_P(EngineDeviceHandoffTest, NobodyButTheSinkWaitsForCopies) {
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64);
  prefill.copies.Hold();
  std::vector<std::shared_ptr<SinkLog>> logs;
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (int32_t salt = 0; salt < 2; ++salt) {
    logs.push_back(std::make_shared<SinkLog>());
    listeners.push_back(std::make_shared<RecordingListener>());
    GenerateRequest request = MakeRequest(policy(), salt);
    request.sink = std::make_unique<FakeSink>(logs.back());
    ASSERT_TRUE(prefill.engine().Submit(std::move(request), listeners.back()).ok());
    EXPECT_TRUE(listeners.back()->AwaitTokens(1));
  }
  // Both have nothing left to compute.
  EXPECT_TRUE(Eventually([&] { return !prefill.engine().load().has_work; }));
  EXPECT_TRUE(prefill.StagesSomething());
  for (size_t i = 0; i < logs.size(); ++i) {
    EXPECT_FALSE(listeners[i]->done());
    EXPECT_FALSE(logs[i]->committed().has_value());
    EXPECT_TRUE(logs[i]->pages().empty());
    EXPECT_EQ(listeners[i]->progress().back(), 300 - 71 * static_cast<int64_t>(i));
  }
  prefill.copies.Release();
  for (size_t i = 0; i < logs.size(); ++i) {
    EXPECT_TRUE(listeners[i]->AwaitDone());
    EXPECT_TRUE(listeners[i]->status().ok()) << listeners[i]->status();
    EXPECT_EQ(listeners[i]->tokens().size(), 1u);
    EXPECT_EQ(listeners[i]->errors(), 0);
    EXPECT_TRUE(logs[i]->committed().has_value());
    EXPECT_FALSE(logs[i]->pages().empty());
    EXPECT_EQ(logs[i]->errors(), 0);
  }
  prefill.ExpectFree();
}

// Who reads pages where they are has every layer while the step that coded it has not drawn yet.
TEST_P(EngineDeviceHandoffTest, LayersLeaveADeviceBeforeTheirStepHasEnded) {
  size_t pages = 0;
  for (const bool held : {false, true}) {
    const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64);
    const auto log = std::make_shared<SinkLog>();
    const auto listener = std::make_shared<RecordingListener>();
    GenerateRequest request = MakeRequest(policy(), 0);
    request.sink = std::make_unique<FakeSink>(log, /*reads_devices=*/true);
    if (held) {
      prefill.memory.HoldDownloads();
    }
    ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
    if (held) {
      EXPECT_TRUE(Eventually([&] { return log->pages().size() == pages; }));
      EXPECT_TRUE(listener->tokens().empty());
      prefill.memory.Release();
    }
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    pages = log->pages().size();
    EXPECT_EQ(log->errors(), 0);
    prefill.ExpectFree();
  }
  EXPECT_GT(pages, 0u);
}

TEST_P(EngineDeviceHandoffTest, MemoryOfACancelledRequestStaysUntilItsCopiesAreDone) {
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64);
  prefill.copies.Hold();
  const auto log = std::make_shared<SinkLog>();
  const auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request = MakeRequest(policy(), 0);
  request.sink = std::make_unique<FakeSink>(log);
  ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
  EXPECT_TRUE(listener->AwaitTokens(1));
  prefill.engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return !prefill.engine().load().has_work; }));
  EXPECT_TRUE(prefill.StagesNow());
  EXPECT_FALSE(log->aborted());
  prefill.copies.Release();
  EXPECT_TRUE(log->AwaitEnd());
  EXPECT_TRUE(log->aborted());
  EXPECT_EQ(log->errors(), 0);
  prefill.ExpectFree();
}

TEST_P(EngineDeviceHandoffTest, ACopyThatFailsEndsTheRequest) {
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64);
  prefill.copies.Fail();
  const auto log = std::make_shared<SinkLog>();
  const auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request = MakeRequest(policy(), 0);
  request.sink = std::make_unique<FakeSink>(log);
  ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
  EXPECT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(listener->status().message()), HasSubstr("a copy has failed"));
  EXPECT_TRUE(log->AwaitEnd());
  EXPECT_TRUE(log->aborted());
  prefill.ExpectFree();
}

TEST_P(EngineDeviceHandoffTest, AnEngineThatShutsDownWaitsForItsCopies) {
  PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64);
  prefill.copies.Hold();
  const auto log = std::make_shared<SinkLog>();
  const auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request = MakeRequest(policy(), 0);
  request.sink = std::make_unique<FakeSink>(log);
  ASSERT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
  EXPECT_TRUE(listener->AwaitTokens(1));
  std::thread release([&] {
    EXPECT_TRUE(listener->AwaitDone());
    EXPECT_FALSE(log->aborted());
    prefill.copies.Release();
  });
  prefill.real = nullptr;
  release.join();
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(log->aborted());
  EXPECT_EQ(kernels::GuardedMemory::Get().blocks(), 0);
}

TEST_P(EngineDeviceHandoffTest, OthersDecodeWhileAPromptIsBroughtToTheDevice) {
  const std::vector<HostAnswer> want = OfTheHost();
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64);
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kHost, /*chunk=*/64);
  const SplitRun first = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 0));
  EXPECT_TRUE(first.decode->AwaitTokens(1));
  decode.copies.Hold();
  const SplitRun second = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 2));
  EXPECT_TRUE(second.prefill->AwaitDone());
  EXPECT_TRUE(second.prefill->status().ok()) << second.prefill->status();
  first.Await();
  EXPECT_TRUE(second.decode->tokens().empty());
  EXPECT_TRUE(decode.StagesNow());
  decode.copies.Release();
  second.Await();
  EXPECT_EQ(second.tokens(), want[2].tokens);
  decode.ExpectFree();
}

// A prompt waits for no step but one that was at work when its pages were given to it.
TEST_P(EngineDeviceHandoffTest, APromptIsBroughtToTheDeviceWhileAStepIsAtWork) {
  const std::vector<HostAnswer> want = OfTheHost();
  for (const bool reserved_before : {true, false}) {
    const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64);
    const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kHost, /*chunk=*/64);
    const SplitRun first = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 0));
    EXPECT_TRUE(first.decode->AwaitTokens(1));
    GenerateRequest request = MakeRequest(policy(), 2);
    SplitRun second;
    if (reserved_before) {
      request.sink = ReservedSink(decode.engine(), request, second);
      EXPECT_TRUE(first.decode->AwaitTokens(first.decode->tokens().size() + 2));
    }
    decode.memory.HoldDownloads();
    decode.memory.AwaitHeld();
    if (!reserved_before) {
      request.sink = ReservedSink(decode.engine(), request, second);
    }
    EXPECT_TRUE(prefill.engine().Submit(std::move(request), second.prefill).ok());
    EXPECT_TRUE(second.prefill->AwaitDone());
    if (reserved_before) {
      EXPECT_TRUE(Eventually([&] { return !decode.StagesNow(); }));
    } else {
      absl::SleepFor(absl::Milliseconds(50));  // with less the test could only miss something
      EXPECT_TRUE(decode.StagesNow());
    }
    EXPECT_FALSE(first.decode->done());
    decode.memory.Release();
    first.Await();
    second.Await();
    EXPECT_EQ(second.tokens(), want[2].tokens);
    decode.ExpectFree();
  }
}

TEST_P(EngineDeviceHandoffTest, APromptThatIsCancelledOnItsWayToTheDeviceKeepsItsMemoryUntilThen) {
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64);
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kHost, /*chunk=*/64);
  decode.copies.Hold();
  const SplitRun run = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 0));
  EXPECT_TRUE(run.prefill->AwaitDone());
  decode.engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(run.decode->AwaitDone());
  EXPECT_TRUE(decode.StagesNow());
  decode.copies.Release();
  decode.ExpectFree();

  decode.copies.Fail();
  const SplitRun failed = Split(prefill.engine(), decode.engine(), MakeRequest(policy(), 1));
  EXPECT_TRUE(failed.decode->AwaitDone());
  EXPECT_EQ(failed.decode->status().code(), absl::StatusCode::kInternal);
  decode.ExpectFree();
}

TEST_P(EngineDeviceHandoffTest, ACommitThatDoesNotFitChangesNothing) {
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = AwaitGrant(decode.engine(), ReserveFor(MakeRequest(policy(), 0)), listener);
  ASSERT_TRUE(grant.ok()) << grant.status();
  absl::Status status = absl::UnknownError("no answer");
  absl::Notification answered;
  decode.engine().Commit(grant->reservation_id,
                         grant->epoch,
                         /*attempt=*/1,
                         CommitInfo{},
                         [&](absl::Status answer) {
                           status = std::move(answer);
                           answered.Notify();
                         });
  answered.WaitForNotification();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(listener->done());
  EXPECT_TRUE(decode.StagesSomething());
  decode.engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(listener->AwaitDone());
  decode.ExpectFree();
}

TEST_P(EngineDeviceHandoffTest, WithoutMemoryToStageThemPromptsWaitOrAreRefused) {
  // For one prompt of 300 tokens, not for two.
  const GenerateRequest request = MakeRequest(policy(), 0);
  HandoffShape shape;
  {
    const PlacedEngine any(*checkpoint_, Role::kPrefill, Place::kHost, /*chunk=*/64);
    shape = *any.engine().DescribeHandoff(policy(), static_cast<int64_t>(request.prompt.size()));
  }
  const int64_t bytes =
      shape.window.pages_per_layer * shape.window.page_bytes * shape.shipped_layers +
      shape.hidden_pages * shape.hidden_page_bytes;
  const int64_t staging = bytes * 3 / 2;
  const PlacedEngine decode(*checkpoint_, Role::kDecode, Place::kDevice, /*chunk=*/64, staging);
  const PlacedEngine prefill(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64, staging);

  const auto first = std::make_shared<RecordingListener>();
  const auto second = std::make_shared<RecordingListener>();
  ASSERT_TRUE(AwaitGrant(decode.engine(), ReserveFor(request), first).ok());
  ReserveRequest another = ReserveFor(request);
  another.request_id = "another";
  const auto refused = AwaitGrant(decode.engine(), another, second);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("KV_POOL_FULL"));
  decode.engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(Eventually([&] { return AwaitGrant(decode.engine(), another, second).ok(); }));
  decode.engine().Cancel("another", absl::CancelledError("enough"));
  decode.ExpectFree();

  // The first is with its sink; the second starts when its staged memory is back.
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto waiting_log = std::make_shared<SinkLog>();
  const auto shipped = std::make_shared<RecordingListener>();
  const auto waiting = std::make_shared<RecordingListener>();
  GenerateRequest ships = MakeRequest(policy(), 0);
  ships.sink = std::make_unique<FakeSink>(log);
  ASSERT_TRUE(prefill.engine().Submit(std::move(ships), shipped).ok());
  GenerateRequest waits = MakeRequest(policy(), 0);
  waits.request_id = "waits";
  waits.sink = std::make_unique<FakeSink>(waiting_log);
  ASSERT_TRUE(prefill.engine().Submit(std::move(waits), waiting).ok());
  ASSERT_TRUE(log->AwaitEnd());
  EXPECT_FALSE(waiting->done());
  EXPECT_TRUE(waiting->progress().empty());
  EXPECT_EQ(prefill.engine().load().waiting_requests, 1);
  log->Answer(absl::OkStatus(), 1);
  EXPECT_TRUE(waiting->AwaitDone());
  EXPECT_TRUE(waiting->status().ok()) << waiting->status();
  prefill.ExpectFree();

  // One that is larger than all of it is refused, but for a sink that reads the device.
  for (const bool reads_devices : {false, true}) {
    GenerateRequest large = MakeRequest(policy(), 0);
    large.prompt.resize(700);
    large.sink = std::make_unique<FakeSink>(std::make_shared<SinkLog>(), reads_devices);
    const auto listener = std::make_shared<RecordingListener>();
    ASSERT_TRUE(prefill.engine().Submit(std::move(large), listener).ok());
    ASSERT_TRUE(listener->AwaitDone());
    const absl::Status& status = listener->status();
    EXPECT_EQ(status.ok(), reads_devices) << status;
    EXPECT_EQ(absl::StrContains(status.message(), "EXCEEDS_CAPACITY"), !reads_devices) << status;
    prefill.ExpectFree();
  }
}

class EngineDeviceHandoffAnswersTest : public testing::TestWithParam<const char*> {};

TEST_P(EngineDeviceHandoffAnswersTest, SeveralAnswersShareAPromptThatHasLanded) {
  const auto checkpoint = OpenModel("tiny-llama-needle");
  const PlacedEngine both(*checkpoint, Role::kBoth, Place::kHost, /*chunk=*/300);
  GenerateRequest request = MakeRequest(GetParam(), 1);
  request.sampling.n = 3;
  const auto want = Alone(both.engine(), MakeRequest(GetParam(), 1));
  const PlacedEngine decode(*checkpoint, Role::kDecode, Place::kDevice, /*chunk=*/64);
  const PlacedEngine prefill(*checkpoint, Role::kPrefill, Place::kDevice, /*chunk=*/64);
  const SplitRun run = Split(prefill.engine(), decode.engine(), std::move(request));
  run.Await();
  EXPECT_EQ(run.tokens(0), want->tokens());
  EXPECT_NE(run.tokens(1), run.tokens(2));
  EXPECT_EQ(run.tokens(2).size(), static_cast<size_t>(kSplitMaxTokens));
  decode.ExpectFree();
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         EngineDeviceHandoffAnswersTest,
                         testing::Values("dense",
                                         "diffkv:ah=2,al=0.5,w=16",
                                         "shadowkv:rank=32,budget=48,outliers=2"),
                         [](const auto& test) {
                           return std::string(test.param).substr(0, test.param[0] == 'd' ? 5 : 8);
                         });

// The second turn's tokens of a conversation whose first turn was prefilled elsewhere.
std::vector<int32_t> SecondTurn(const checkpoint::Checkpoint& model,
                                const std::string& policy,
                                Place place) {
  const PlacedEngine decode(model, Role::kDecode, place, /*chunk=*/64);
  const PlacedEngine prefill(model, Role::kPrefill, place, /*chunk=*/64);
  GenerateRequest request = MakeRequest(policy, 0);
  ReserveRequest reserve = ReserveFor(request);
  reserve.session_id = "talk";
  reserve.prompt = request.prompt;
  SplitRun run;
  const auto grant = AwaitGrant(decode.engine(), reserve, run.decode);
  EXPECT_TRUE(grant.ok()) << grant.status();
  std::vector<int32_t> turn = request.prompt;
  request.sink = std::make_unique<CopySink>(decode.engine(), *grant);
  EXPECT_TRUE(prefill.engine().Submit(std::move(request), run.prefill).ok());
  run.Await();
  for (const int32_t token : run.tokens()) {
    turn.push_back(token);
  }
  turn.insert(turn.end(), {5, 6, 7});

  reserve.request_id = "turn";
  reserve.prompt = turn;
  reserve.prompt_tokens = static_cast<int64_t>(turn.size());
  EXPECT_TRUE(Eventually([&] { return decode.engine().load().kept_sessions == 1; }));
  const auto listener = std::make_shared<RecordingListener>();
  const auto extended = AwaitGrant(decode.engine(), reserve, listener);
  EXPECT_TRUE(extended.ok()) << extended.status();
  EXPECT_TRUE(extended->extends_kept);
  EXPECT_FALSE(decode.StagesNow());
  EXPECT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok()) << listener->status();
  return listener->tokens();
}

class EngineDeviceHandoffTurnsTest : public testing::TestWithParam<const char*> {};

TEST_P(EngineDeviceHandoffTurnsTest, ATurnGoesOnFromKvThatHadLanded) {
  const auto checkpoint = OpenModel("tiny-llama-needle");
  const std::vector<int32_t> want = SecondTurn(*checkpoint, GetParam(), Place::kHost);
  EXPECT_FALSE(want.empty());
  EXPECT_EQ(SecondTurn(*checkpoint, GetParam(), Place::kDevice), want);
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         EngineDeviceHandoffTurnsTest,
                         testing::Values("dense",
                                         "fp8",
                                         "diffkv:ah=2,al=0.5,w=16",
                                         "shadowkv:rank=32,budget=48,outliers=2"),
                         [](const auto& test) {
                           return std::string(test.param, std::strcspn(test.param, ":"));
                         });

std::string NameOf(const testing::TestParamInfo<std::tuple<std::string, std::string>>& instance) {
  std::string name = std::get<0>(instance.param) + "_" + std::get<1>(instance.param);
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineDeviceHandoffTest,
    testing::Values(
        std::tuple("tiny-llama-needle", "dense"),
        std::tuple("tiny-llama-needle", "fp8"),
        std::tuple("tiny-llama-needle", "diffkv:ah=2,al=0.5,w=16"),
        std::tuple("tiny-llama-needle", "diffkv:ah=2,al=0.5,score=all,w=16,sinks=2,every=4"),
        std::tuple("tiny-llama-needle", "shadowkv:rank=32,budget=48,outliers=2,local=7,v=bf16"),
        std::tuple("tiny-llama-needle",
                   "shadowkv:rank=32,budget=48,outliers=2,local=7,vplace=host"),
        std::tuple("tiny-llama-needle",
                   "shadowkv:rank=32,budget=0.2,outliers=0,local=56,chunk=1,sel=q2,a=int8"),
        std::tuple("tiny-llama-needle-swiftkv-l6-across2", "dense"),
        std::tuple("tiny-llama-needle-swiftkv-l6-across2", "diffkv:ah=2,al=0.5,w=16"),
        std::tuple("tiny-llama-needle-swiftkv-l6",
                   "shadowkv:rank=32,budget=48,outliers=2,local=7,joint=80"),
        std::tuple("tiny-llama-needle-swiftkv-l6",
                   "shadowkv:rank=32,budget=48,outliers=2,local=7,v=v2,vplace=host,joint=80"),
        std::tuple("tiny-llama-needle-swiftkv-l6", "hidden+dense"),
        std::tuple("tiny-llama-needle-swiftkv-l6-across2", "hidden8+diffkv:ah=2,al=0.5,w=16"),
        std::tuple("tiny-llama-needle-swiftkv-l6", "hidden8+diffkv:ah=2,al=0.5,score=all,w=16"),
        std::tuple("tiny-llama-needle-swiftkv-l6",
                   "hidden+shadowkv:rank=32,budget=48,outliers=2,local=7,joint=80")),
    NameOf);

}  // namespace
}  // namespace baton::engine
