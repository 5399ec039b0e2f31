// Bounds, deadlines, draining and bad arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/late_copies.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(EngineLimitsTest, BadArgumentsAreRefusedAtOnceAndByName) {
  EngineHarness harness(TestOptions(Role::kBoth, 60));
  const auto listener = std::make_shared<RecordingListener>();
  const auto refuse = [&](std::vector<int32_t> prompt, SamplingParams params) {
    const absl::Status status =
        harness.TrySubmit("x", std::move(prompt), std::move(params), listener);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return Message(status);
  };
  EXPECT_THAT(refuse({}, GreedyParams(1)), HasSubstr("prompt"));
  EXPECT_THAT(refuse({1, FakeModel::kVocab}, GreedyParams(1)), HasSubstr("prompt token 1 is 64"));
  EXPECT_THAT(refuse({-1}, GreedyParams(1)), HasSubstr("prompt token 0 is -1"));
  EXPECT_THAT(refuse({1}, GreedyParams(0)), HasSubstr("max_tokens"));
  EXPECT_THAT(refuse(MakePrompt(4000), GreedyParams(97)), HasSubstr("PROMPT_TOO_LONG"));
  EXPECT_THAT(refuse(MakePrompt(70), GreedyParams(11)), HasSubstr("EXCEEDS_CAPACITY"));
  SamplingParams wide = GreedyParams(1);
  wide.n = 33;
  EXPECT_THAT(refuse({1}, wide), HasSubstr("EXCEEDS_CAPACITY"));
  GenerateRequest request;
  request.request_id = "x";
  request.prompt = {1};
  request.sampling = GreedyParams(1);
  request.kv_policy = "diffkv";
  const absl::Status policy = harness.engine->Submit(std::move(request), listener);
  EXPECT_EQ(policy.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(policy), HasSubstr("diffkv"));
  EXPECT_FALSE(listener->done());
  EXPECT_TRUE(harness.AtBaseline());
}

TEST(EngineLimitsTest, ARequestThatJustFitsRuns) {
  EngineHarness harness(TestOptions(Role::kBoth, 60));
  const auto listener = harness.Submit("x", MakePrompt(70), GreedyParams(10));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->tokens(), ExpectedTokens(MakePrompt(70), GreedyParams(10)));
}

TEST(EngineLimitsTest, DuplicateIdsAreRefusedWhileLive) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->Hold();
  const auto first = harness.Submit("x", MakePrompt(5), GreedyParams(2));
  const auto second = std::make_shared<RecordingListener>();
  EXPECT_EQ(harness.TrySubmit("x", MakePrompt(5), GreedyParams(2), second).code(),
            absl::StatusCode::kAlreadyExists);
  harness.control->Release();
  ASSERT_TRUE(first->AwaitDone());
  EXPECT_TRUE(harness.TrySubmit("x", MakePrompt(5), GreedyParams(2), second).ok());
  EXPECT_TRUE(second->AwaitDone());
}

// Catalogue T32
TEST(EngineLimitsTest, WaitingQueueIsBoundedByRequestsAndTokens) {
  EngineOptions options = TestOptions(Role::kBoth, 12);
  options.max_waiting_requests = 3;
  options.max_waiting_tokens = 35;
  EngineHarness harness(options);
  harness.control->Hold();
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  listeners.push_back(harness.Submit("running", MakePrompt(12), GreedyParams(4)));
  harness.control->AwaitHeld();
  listeners.push_back(harness.Submit("w0", MakePrompt(12), GreedyParams(4)));
  listeners.push_back(harness.Submit("w1", MakePrompt(12), GreedyParams(4)));
  const auto refused = std::make_shared<RecordingListener>();
  const absl::Status tokens = harness.TrySubmit("w2", MakePrompt(12), GreedyParams(4), refused);
  EXPECT_EQ(tokens.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(tokens), HasSubstr("QUEUE_FULL"));
  listeners.push_back(harness.Submit("w2", MakePrompt(2), GreedyParams(4)));
  EXPECT_EQ(harness.TrySubmit("w3", MakePrompt(1), GreedyParams(1), refused).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().waiting_requests == 3; }));
  harness.control->Release();
  for (const auto& listener : listeners) {
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok());
  }
  EXPECT_FALSE(refused->done());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineLimitsTest, PromptsThatNoStepHasBegunAreToldApart) {
  EngineOptions options = TestOptions(Role::kBoth);
  options.step_token_budget = 16;
  EngineHarness harness(options);
  harness.control->Hold();
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  listeners.push_back(harness.Submit("running", MakePrompt(12), GreedyParams(4)));
  harness.control->AwaitHeld();
  SamplingParams two = GreedyParams(4);
  two.n = 2;
  listeners.push_back(harness.Submit("w0", MakePrompt(12), GreedyParams(4)));
  listeners.push_back(harness.Submit("w1", MakePrompt(12), two));
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().unstarted_requests == 2; }));
  EXPECT_EQ(harness.engine->load().unstarted_sequences, 3);
  EXPECT_EQ(harness.engine->load().running_sequences, 4);
  harness.control->Release();
  for (const auto& listener : listeners) {
    ASSERT_TRUE(listener->AwaitDone());
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().unstarted_requests, 0);
}

// The engine thread is stopped inside a callback, so commands pile up.
TEST(EngineLimitsTest, CommandQueueIsBoundedAndCancelIsNeverLost) {
  EngineOptions options = TestOptions(Role::kDecode);
  options.max_queued_commands = 4;
  EngineHarness harness(options);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 8, GreedyParams(3), listener);
  ASSERT_TRUE(grant.ok());
  absl::Notification inside;
  absl::Notification go;
  harness.engine->RenewLease(grant->reservation_id, grant->epoch, [&](const absl::Status&) {
    inside.Notify();
    go.WaitForNotification();
  });
  inside.WaitForNotification();
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 10; ++i) {
    harness.engine->RenewLease(
        grant->reservation_id, grant->epoch, [&](const absl::Status& status) {
          ++(status.code() == absl::StatusCode::kResourceExhausted ? refused : accepted);
        });
  }
  EXPECT_EQ(refused, 6);
  const auto other = std::make_shared<RecordingListener>();
  ReserveRequest request;
  request.request_id = "e";
  request.prompt_tokens = 1;
  request.sampling = GreedyParams(1);
  EXPECT_EQ(harness.engine->Reserve(request, other, [](const auto&) { FAIL(); }).code(),
            absl::StatusCode::kResourceExhausted);
  harness.engine->Cancel("d", absl::CancelledError("never lost"));
  go.Notify();
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(accepted, 4);
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_TRUE(harness.Reserve("e", 8, GreedyParams(3), other).ok()) << "the refused id is free";
}

TEST(EngineLimitsTest, DeadlineWhileWaitingAndInPrefill) {
  EngineHarness harness(TestOptions(Role::kBoth, 12));
  harness.control->Hold();
  const auto running =
      harness.Submit("a", MakePrompt(12), GreedyParams(4), nullptr, absl::Seconds(5));
  harness.control->AwaitHeld();
  const auto queued =
      harness.Submit("b", MakePrompt(12), GreedyParams(4), nullptr, absl::Seconds(3));
  harness.clock.Advance(absl::Seconds(3));
  ASSERT_TRUE(queued->AwaitDone());
  EXPECT_EQ(queued->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(queued->status()), HasSubstr("phase=queue"));
  EXPECT_FALSE(running->done());
  harness.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(running->AwaitDone());
  EXPECT_THAT(Message(running->status()), HasSubstr("phase=prefill"));
  EXPECT_EQ(harness.engine->load().pages_free, 0) << "the step still uses the pages";
  harness.control->Release();
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineLimitsTest, DeadlineWhileDecoding) {
  EngineHarness harness(TestOptions(Role::kBoth));
  const auto listener =
      harness.Submit("c", MakePrompt(4), GreedyParams(3000), nullptr, absl::Seconds(5));
  ASSERT_TRUE(listener->AwaitTokens(2));
  harness.control->Hold();
  harness.control->AwaitHeld();
  harness.clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(listener->status()), HasSubstr("phase=decode"));
  harness.control->Release();
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineLimitsTest, DeadlineDuringTransferOnBothSides) {
  EngineHarness prefill(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto sender = prefill.Submit("p", MakePrompt(8), GreedyParams(2), log, absl::Seconds(5));
  ASSERT_TRUE(log->AwaitEnd());
  prefill.clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(sender->AwaitDone());
  EXPECT_EQ(sender->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(sender->status()), HasSubstr("phase=transfer"));
  EXPECT_FALSE(prefill.AtBaseline());
  log->Answer(absl::DeadlineExceededError("late"), 0);
  EXPECT_TRUE(Eventually([&] { return prefill.AtBaseline(); }));

  EngineHarness decode(TestOptions(Role::kDecode));
  const auto receiver = std::make_shared<RecordingListener>();
  ASSERT_TRUE(decode.Reserve("d", 8, GreedyParams(2), receiver, absl::Seconds(5)).ok());
  decode.clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(receiver->AwaitDone());
  EXPECT_EQ(receiver->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(receiver->status()), HasSubstr("phase=transfer"));
  EXPECT_TRUE(Eventually([&] { return decode.AtBaseline(); }));
}

TEST(EngineLimitsTest, DrainRefusesNewAndFinishesRunning) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->Hold();
  const auto running = harness.Submit("a", MakePrompt(8), GreedyParams(5));
  harness.control->AwaitHeld();
  const auto waiting = harness.Submit("b", MakePrompt(8, 1), GreedyParams(5));
  harness.engine->Drain();
  EXPECT_TRUE(harness.engine->load().draining);
  const auto refused = std::make_shared<RecordingListener>();
  const absl::Status status = harness.TrySubmit("c", MakePrompt(8), GreedyParams(5), refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("DRAINING"));
  harness.control->Release();
  ASSERT_TRUE(running->AwaitDone());
  ASSERT_TRUE(waiting->AwaitDone());
  EXPECT_TRUE(running->status().ok());
  EXPECT_EQ(waiting->tokens(), ExpectedTokens(MakePrompt(8, 1), GreedyParams(5)));
  EXPECT_FALSE(refused->done());
}

TEST(EngineLimitsTest, DestructorEndsEveryRequestOnce) {
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  {
    EngineHarness harness(TestOptions(Role::kBoth, 60));
    for (int i = 0; i < 20; ++i) {
      listeners.push_back(harness.Submit(absl::StrCat("r", i), MakePrompt(20), GreedyParams(40)));
    }
  }
  for (const auto& listener : listeners) {
    EXPECT_TRUE(listener->done());
    EXPECT_EQ(listener->errors(), 0);
  }
  EXPECT_EQ(listeners.back()->status().code(), absl::StatusCode::kUnavailable);
}

TEST(EngineLimitsTest, ProgressShowsLayersOfALongStepAndNothingWhileTheModelStands) {
  EngineHarness harness(TestOptions(Role::kBoth));
  // The engine wakes every second of its clock.
  const auto progress = [&] {
    harness.clock.Advance(absl::Seconds(2));
    return harness.engine->load().progress;
  };
  harness.control->Hold();
  const auto listener = harness.Submit("a", MakePrompt(8), GreedyParams(1));
  harness.control->AwaitHeld();
  const auto behind = harness.Submit("b", MakePrompt(8), GreedyParams(1));
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().running_sequences == 2; }))
      << "the engine was to go on while its model stands";
  EXPECT_EQ(progress(), 0);
  EXPECT_TRUE(harness.engine->load().has_work);
  harness.control->PassOne();
  harness.control->AwaitHeld();
  EXPECT_TRUE(Eventually([&] { return progress() == 1; }));
  EXPECT_EQ(harness.engine->load().steps, 0);
  harness.control->Release();
  ASSERT_TRUE(listener->AwaitDone());
  ASSERT_TRUE(behind->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().steps, 2);
  EXPECT_EQ(harness.engine->load().progress, 6);  // each: twice layers, and the step
}

TEST(EngineLimitsTest, ADeviceServesEveryFormatInEveryRole) {
  kernels::ThreadPool threads(1);
  kernels::Buffer workspace;
  kernels::LateCopies copies;
  const auto create = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = TestOptions(Role::kBoth);
    options.codec_pools = {};
    options.staging_bytes = 1 << 20;
    change(options);
    return Engine::Create(std::make_unique<FakeModel>(std::make_shared<FakeModelControl>()),
                          {.pool = &threads,
                           .workspace = &workspace,
                           .memory = &kernels::GuardedMemory::Get(),
                           .copies = &copies},
                          kernels::DeviceDoubleOps(kernels::DType::kF32),
                          options,
                          nullptr,
                          nullptr)
        .status()
        .code();
  };
  EXPECT_EQ(create([](EngineOptions&) { kernels::GuardedMemory::Get().FailNext(); }),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(create([](EngineOptions&) {}), absl::StatusCode::kOk);
  for (const Role role : {Role::kBoth, Role::kPrefill, Role::kDecode}) {
    EXPECT_EQ(create([=](EngineOptions& o) {
                o.role = role;
                o.codec_pools.fp8_bytes = 1 << 20;
                o.codec_pools.diffkv_bytes = 1 << 20;
                o.codec_pools.shadowkv_bytes = 1 << 20;
                o.codec_pools.hidden_bytes = 1 << 20;
              }),
              absl::StatusCode::kOk);
  }
  const auto without_staging = [&](Role role) {
    return create([=](EngineOptions& o) {
      o.role = role;
      o.staging_bytes = 0;
    });
  };
  EXPECT_EQ(without_staging(Role::kPrefill), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(without_staging(Role::kDecode), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(without_staging(Role::kBoth), absl::StatusCode::kOk) << "nothing is handed off";
}

TEST(EngineLimitsTest, OptionsThatMeanNothingAreRefused) {
  kernels::ThreadPool threads(1);
  kernels::Buffer workspace;
  const auto create = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = TestOptions(Role::kBoth);
    change(options);
    return Engine::Create(std::make_unique<FakeModel>(std::make_shared<FakeModelControl>()),
                          {.pool = &threads, .workspace = &workspace},
                          kernels::ReferenceOps(),
                          options,
                          nullptr,
                          nullptr)
        .status()
        .code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(create([](EngineOptions& o) { o.step_token_budget = 0; }), kInvalid);
  EXPECT_EQ(create([](EngineOptions& o) { o.lease = absl::ZeroDuration(); }), kInvalid);
  EXPECT_EQ(create([](EngineOptions& o) { o.max_sequence_tokens = 5000; }), kInvalid);
  EXPECT_EQ(create([](EngineOptions& o) { o.kv_pool_bytes = 100; }), kInvalid);
  EXPECT_EQ(create([](EngineOptions& o) { o.page_tokens = 0; }), kInvalid);
  EXPECT_EQ(create([](EngineOptions& o) { o.page_dtype = kernels::DType::kU8; }), kInvalid);
  EXPECT_EQ(create([](EngineOptions&) {}), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace baton::engine
