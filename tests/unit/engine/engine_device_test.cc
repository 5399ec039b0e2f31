// Encoded KV formats on a device over real models: the tokens of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/gathered_op.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/device_double/deferred_queues.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/gathering_memory.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/replayed_graphs.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

constexpr kv::CodecPools kPools = {.fp8_bytes = 8 << 20,
                                   .diffkv_bytes = 8 << 20,
                                   .shadowkv_bytes = 16 << 20,
                                   .shadowkv_host_bytes = 8 << 20,
                                   .hidden_bytes = 1 << 20};
// Every head takes more pages while it generates, or codes a block, and the host reads counts again
// and again.
constexpr int32_t kMaxTokens = 80;
constexpr int32_t kRequests = 4;

class EngineDeviceTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    auto opened = checkpoint::Checkpoint::Open(
        BATON_SOURCE_DIR "/tests/data/models/" + std::get<0>(GetParam()), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  RealEngine OnDevice(int32_t chunk) {
    return {*checkpoint_,
            Role::kBoth,
            chunk,
            /*budget=*/100,
            kPools,
            CountingOps(),
            memory_,
            kWorkspaceBytes,
            &side_,
            &graphs_};
  }

  // The device double's, which count what is added up of a prompt before it is whole.
  static const kernels::OpTable& CountingOps() {
    static const kernels::OpTable kOps = [] {
      kernels::OpTable table = kernels::DeviceDoubleOps(kernels::DType::kF32);
      table.shadowkv_add_grams = [](const kernels::ExecContext& exec,
                                    const kernels::ShadowKvAddGramsParams& params) {
        added_tokens += params.token_end - params.token_begin;
        return kernels::DeviceDoubleOps(kernels::DType::kF32).shadowkv_add_grams(exec, params);
      };
      return table;
    }();
    return kOps;
  }
  static inline int64_t added_tokens = 0;  // in every call; of the executor's thread

  static GenerateRequest Request(int32_t salt) {
    GenerateRequest request;
    request.request_id = std::to_string(salt);
    request.kv_policy = std::get<1>(GetParam());
    request.sampling.temperature = salt % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.top_k = salt == 3 ? 20 : 0;  // which needs no whole row of logits
    request.sampling.seed = static_cast<uint64_t>(salt);
    request.sampling.max_tokens = kMaxTokens;
    for (int32_t i = 0; i < 300 - 71 * salt; ++i) {
      request.prompt.push_back((i * i * 31 + i * 7 + salt * 101) % 4000);
    }
    return request;
  }

  // All requests at once.
  static std::vector<std::shared_ptr<RecordingListener>> Generate(Engine& engine) {
    std::vector<std::shared_ptr<RecordingListener>> listeners;
    for (int32_t salt = 0; salt < kRequests; ++salt) {
      listeners.push_back(std::make_shared<RecordingListener>());
      const absl::Status status = engine.Submit(Request(salt), listeners.back());
      EXPECT_TRUE(status.ok()) << status;
    }
    for (const auto& listener : listeners) {
      EXPECT_TRUE(listener->AwaitDone());
      EXPECT_TRUE(listener->status().ok()) << listener->status();
    }
    return listeners;
  }

  // Every page of every pool comes back.
  static void ExpectFree(const RealEngine& engine) {
    for (int i = 0; i < 30000 && !engine.AtBaseline(); ++i) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(engine.AtBaseline());
    for (const FormatPool& pool : engine.engine->load().format_pools) {
      EXPECT_EQ(pool.bytes.free, pool.bytes.total);
    }
  }

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  // Of the device.
  kernels::DeferredQueues side_{4, kWorkspaceBytes};
  kernels::ReplayedGraphs graphs_;
  kernels::GatheringMemory memory_{graphs_};
};

TEST_P(EngineDeviceTest, GivesTheTokensOfTheHost) {
  RealEngine host(*checkpoint_, Role::kBoth, /*chunk=*/300, /*budget=*/512, kPools);
  const auto want = Generate(*host.engine);
  added_tokens = 0;
  // Chunks that cut a prompt's last queries, and such that have them all.
  for (const int32_t chunk : {37, 300}) {
    const RealEngine device = OnDevice(chunk);
    const auto got = Generate(*device.engine);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]->tokens(), want[i]->tokens()) << "request " << i << ", chunk " << chunk;
      EXPECT_EQ(got[i]->stats().kv_resident_bytes, want[i]->stats().kv_resident_bytes);
    }
    ExpectFree(device);
  }
  EXPECT_EQ(kernels::GuardedMemory::Get().blocks(), 0);
  // Layers of shadowkv are coded side by side and waited for by the next step, what of upper layers
  // depends on no factors on queues of its own; those of diffkv in turn, until the host asks what
  // they took; those of fp8 in the step itself.
  const std::string& policy = std::get<1>(GetParam());
  const bool factored = std::get<0>(GetParam()).find("swiftkv") != std::string::npos &&
                        policy.find("joint") == std::string::npos;
  EXPECT_EQ(side_.most_queues(), policy.starts_with("shadowkv") ? (factored ? 6 : 4) : 0);
  EXPECT_EQ(added_tokens > 0, policy.starts_with("shadowkv") && factored);
  EXPECT_GT(side_.paces(), 0);
}

// Where nothing comes or goes a step calls the ops of the step before, but for bounds on its
// tokens, which are multiples of 64.
TEST_P(EngineDeviceTest, DecodeStepsRepeatTheirOps) {
  constexpr int64_t kSteps = 100;
  {
    const RealEngine device = OnDevice(/*chunk=*/64);
    const auto listener = std::make_shared<RecordingListener>();
    GenerateRequest request = Request(0);
    request.sampling.max_tokens = kSteps + 1;
    ASSERT_TRUE(device.engine->Submit(std::move(request), listener).ok());
    ASSERT_TRUE(listener->AwaitDone());
    ASSERT_TRUE(listener->status().ok()) << listener->status();
  }
  EXPECT_EQ(graphs_.launches(), kSteps);
  if (!BATON_CLEARS_PADDING) {
    GTEST_SKIP() << "this compiler leaves in parameters what lay there before";
  }
  EXPECT_LE(graphs_.distinct(), 2 * (kSteps / 64 + 2)) << "with scores and without";
}

// For every 32 of the tokens that are appended, which the last one isn't, and in `diffkv` once when
// the prompt is encoded; everything else is read back for `dense` too. Of `fp8` the host knows all.
TEST_P(EngineDeviceTest, TheHostSeldomWaitsForCounts) {
  const RealEngine device = OnDevice(64);
  const auto downloads = [&](const std::string& policy) {
    const auto listener = std::make_shared<RecordingListener>();
    GenerateRequest request = Request(2);
    request.request_id = policy;
    request.kv_policy = policy;
    const int64_t before = kernels::GuardedMemory::Get().downloads();
    EXPECT_TRUE(device.engine->Submit(std::move(request), listener).ok());
    EXPECT_TRUE(listener->AwaitDone());
    EXPECT_EQ(listener->tokens().size(), static_cast<size_t>(kMaxTokens));
    return kernels::GuardedMemory::Get().downloads() - before;
  };
  const std::string& policy = std::get<1>(GetParam());
  const int64_t dense = downloads("dense");
  EXPECT_EQ(side_.paces(), 0);  // nothing of it is on side queues
  const int64_t of_prompt = policy.find("diffkv") != std::string::npos ? 1 : 0;
  const int64_t of_answer = policy == "fp8" ? 0 : (kMaxTokens - 1) / 32;
  EXPECT_EQ(downloads(policy), dense + of_prompt + of_answer);
}

// While the prompt is computed, and while it is decoded.
TEST_P(EngineDeviceTest, CancelledRequestsGiveEverythingBack) {
  const RealEngine device = OnDevice(/*chunk=*/16);
  for (const size_t tokens : {size_t{0}, size_t{1}, size_t{5}}) {
    const auto listener = std::make_shared<RecordingListener>();
    ASSERT_TRUE(device.engine->Submit(Request(0), listener).ok());
    EXPECT_TRUE(tokens > 0 ? listener->AwaitTokens(tokens)
                           : Eventually([&] { return !listener->progress().empty(); }));
    device.engine->Cancel(Request(0).request_id, absl::OkStatus());
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(absl::IsCancelled(listener->status())) << listener->status();
    ExpectFree(device);
  }
}

class EngineDeviceAnswersTest : public EngineDeviceTest {};

TEST_P(EngineDeviceAnswersTest, SeveralAnswersToAPromptAreThoseOfTheHost) {
  constexpr int32_t kAnswers = 3;
  const auto answers = [](const RealEngine& engine, int32_t prompt_tokens) {
    const auto listener = std::make_shared<RecordingListener>();
    GenerateRequest request = Request(1);
    request.prompt.resize(static_cast<size_t>(prompt_tokens));
    request.sampling.n = kAnswers;
    EXPECT_TRUE(engine.engine->Submit(std::move(request), listener).ok());
    EXPECT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    std::vector<std::vector<int32_t>> tokens;
    tokens.reserve(kAnswers);
    for (int32_t i = 0; i < kAnswers; ++i) {
      tokens.push_back(listener->tokens(i));
    }
    return tokens;
  };
  const RealEngine host(*checkpoint_, Role::kBoth, /*chunk=*/300, /*budget=*/512, kPools);
  const RealEngine device = OnDevice(/*chunk=*/64);
  // With a last page that is full, and with one that is not.
  for (const int32_t prompt_tokens : {192, 201}) {
    const auto want = answers(host, prompt_tokens);
    EXPECT_NE(want[0], want[1]);
    EXPECT_EQ(answers(device, prompt_tokens), want);
    ExpectFree(device);
  }
}

class EngineDeviceTurnsTest : public EngineDeviceTest {};

// Turns whose new tokens begin within a page and are computed in one step or in several, with
// another request in the same steps.
TEST_P(EngineDeviceTurnsTest, TurnsOfAConversationAreThoseOfTheHost) {
  constexpr int64_t kTurns = 4;
  const auto talk = [](const RealEngine& engine) {
    std::vector<std::vector<int32_t>> answers;
    std::vector<int32_t> prompt = Request(2).prompt;
    for (int32_t turn = 0; turn < kTurns; ++turn) {
      const auto beside = std::make_shared<RecordingListener>();
      GenerateRequest other = Request(3);
      other.request_id = "beside" + std::to_string(turn);
      EXPECT_TRUE(engine.engine->Submit(std::move(other), beside).ok());
      const auto listener = std::make_shared<RecordingListener>();
      GenerateRequest request = Request(2);
      request.request_id = std::to_string(turn);
      request.session_id = "talk";
      request.sampling.max_tokens = 9;
      request.prompt = prompt;
      EXPECT_TRUE(engine.engine->Submit(std::move(request), listener).ok());
      EXPECT_TRUE(listener->AwaitDone());
      EXPECT_TRUE(listener->status().ok()) << listener->status();
      EXPECT_EQ(listener->stats().cached_tokens > 0, turn > 0);
      answers.push_back(listener->tokens());
      prompt.insert(prompt.end(), answers.back().begin(), answers.back().end());
      for (int32_t i = 0; i < 3 + 40 * turn; ++i) {
        prompt.push_back((i * 37 + turn * 11) % 4000);
      }
      EXPECT_TRUE(beside->AwaitDone());
      answers.push_back(beside->tokens());
    }
    return answers;
  };
  const RealEngine host(*checkpoint_, Role::kBoth, /*chunk=*/300, /*budget=*/512, kPools);
  const auto want = talk(host);
  for (const int32_t chunk : {37, 300}) {
    const RealEngine device = OnDevice(chunk);
    EXPECT_EQ(talk(device), want) << "chunk " << chunk;
  }
  EXPECT_EQ(kernels::GuardedMemory::Get().blocks(), 0);
}

TEST(EngineDeviceLimitsTest, PoliciesThatADeviceHasNoPlaceForAreRefused) {
  const auto checkpoint = checkpoint::Checkpoint::Open(
      BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle-swiftkv-l6", {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const RealEngine device(**checkpoint,
                          Role::kBoth,
                          /*chunk=*/64,
                          /*budget=*/100,
                          kPools,
                          kernels::DeviceDoubleOps(kernels::DType::kF32),
                          kernels::GuardedMemory::Get(),
                          /*device_workspace_bytes=*/4096);
  const auto submit = [&](const char* policy) {
    GenerateRequest request;
    request.request_id = policy;
    request.kv_policy = policy;
    request.sampling.max_tokens = 1;
    request.prompt.resize(300);
    const auto listener = std::make_shared<RecordingListener>();
    const absl::Status status = device.engine->Submit(std::move(request), listener);
    EXPECT_TRUE(!status.ok() || listener->AwaitDone());
    return status;
  };
  const absl::Status refused = submit("shadowkv:rank=32,budget=48,outliers=2,local=2");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("EXCEEDS_CAPACITY: shadowkv needs"));
  EXPECT_TRUE(submit("diffkv").ok());
}

class EngineDeviceFormatsTest : public testing::Test {
 protected:
  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = OpenModel("tiny-llama-needle");
};

TEST_F(EngineDeviceFormatsTest, RequestsOfAllFormatsShareSteps) {
  const auto generate = [](const RealEngine& engine) {
    std::vector<std::shared_ptr<RecordingListener>> listeners;
    for (const char* policy : {"fp8",
                               "dense",
                               "diffkv",
                               "fp8",
                               "shadowkv:rank=32,budget=48,outliers=2,local=7",
                               "dense",
                               "fp8"}) {
      GenerateRequest request;
      request.request_id = std::to_string(listeners.size());
      request.kv_policy = policy;
      request.sampling.max_tokens = 50;
      const auto salt = static_cast<int32_t>(listeners.size());
      for (int32_t i = 0; i < 230 - 30 * salt; ++i) {
        request.prompt.push_back((i * i * 31 + i * 7 + salt * 101) % 4000);
      }
      listeners.push_back(std::make_shared<RecordingListener>());
      EXPECT_TRUE(engine.engine->Submit(std::move(request), listeners.back()).ok());
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& listener : listeners) {
      EXPECT_TRUE(listener->AwaitDone());
      EXPECT_TRUE(listener->status().ok()) << listener->status();
      tokens.push_back(listener->tokens());
    }
    return tokens;
  };
  const RealEngine host(*checkpoint_, Role::kBoth, /*chunk=*/300, /*budget=*/512, kPools);
  const auto want = generate(host);
  const RealEngine device(*checkpoint_,
                          Role::kBoth,
                          /*chunk=*/48,
                          /*budget=*/64,
                          kPools,
                          kernels::DeviceDoubleOps(kernels::DType::kF32),
                          kernels::GuardedMemory::Get());
  EXPECT_EQ(generate(device), want);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<std::string, std::string>>& instance) {
  std::string name = std::get<0>(instance.param) + "_" + std::get<1>(instance.param);
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineDeviceTest,
    testing::Combine(
        testing::Values("tiny-llama-needle"),
        testing::Values("fp8",
                        "diffkv",
                        "diffkv:al=0",
                        "diffkv:ah=2,al=0.5,policy=paper,w=16",
                        "diffkv:ah=2,al=0.5,score=all,w=16,sinks=2,every=4",
                        "shadowkv:rank=32,budget=48,outliers=2,local=7,v=bf16",
                        "shadowkv:rank=32,budget=48,outliers=2,local=7,landmarks=int8",
                        "shadowkv:rank=32,budget=48,outliers=2,local=7,vplace=host",
                        "shadowkv:rank=32,budget=48,outliers=2,local=2,v=bf16,vplace=host",
                        "shadowkv:rank=32,budget=48,outliers=1,local=2,sel=bounds,gen=exact",
                        "shadowkv:rank=32,budget=0.2,outliers=0,local=56,chunk=1,sel=q2,a=int8")),
    NameOf);
INSTANTIATE_TEST_SUITE_P(
    Models,
    EngineDeviceTest,
    testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6",
                                     "tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("fp8",
                                     "diffkv:ah=2,al=0.5,w=16",
                                     "shadowkv:rank=32,budget=48,outliers=2,local=7",
                                     "shadowkv:rank=32,budget=48,outliers=2,local=7,joint=80",
                                     "shadowkv:rank=32,budget=48,outliers=2,local=2,v=v2,"
                                     "vplace=host,joint=80",
                                     "hidden8+diffkv")),
    NameOf);
INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineDeviceAnswersTest,
    testing::Combine(
        testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
        testing::Values("dense",
                        "fp8",
                        "diffkv:ah=2,al=0.5,score=all,w=16,sinks=2,every=4",
                        "shadowkv:rank=32,budget=48,outliers=2,local=7,landmarks=int8",
                        "shadowkv:rank=32,budget=48,outliers=2,local=2,v=v2,vplace=host")),
    NameOf);
INSTANTIATE_TEST_SUITE_P(JointKeys,
                         EngineDeviceAnswersTest,
                         testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6"),
                                          testing::Values("shadowkv:rank=32,budget=48,outliers=2,"
                                                          "local=7,joint=80")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Policies,
                         EngineDeviceTurnsTest,
                         testing::Combine(testing::Values("tiny-llama-needle",
                                                          "tiny-llama-needle-swiftkv-l6-across2"),
                                          testing::Values("dense",
                                                          "fp8",
                                                          "diffkv:ah=2,al=0.5,w=16",
                                                          "diffkv:ah=2,al=0.5,score=all,w=16,"
                                                          "sinks=2,every=4",
                                                          "shadowkv:rank=32,budget=48,outliers=2,"
                                                          "local=7,landmarks=int8",
                                                          "shadowkv:rank=32,budget=48,outliers=2,"
                                                          "local=2,v=v2,vplace=host",
                                                          "shadowkv:rank=32,budget=48,outliers=1,"
                                                          "local=2,sel=bounds,gen=exact",
                                                          "shadowkv:rank=32,budget=0.2,outliers=0,"
                                                          "local=56,chunk=1,sel=q2,a=int8")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(UpperLayers,
                         EngineDeviceTurnsTest,
                         testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6"),
                                          testing::Values("fp8",
                                                          "diffkv:al=0",
                                                          "shadowkv:rank=32,budget=48,outliers=2,"
                                                          "local=2,joint=80",
                                                          "shadowkv:rank=32,budget=48,outliers=2,"
                                                          "local=2,v=v2,vplace=host,joint=80")),
                         NameOf);

}  // namespace
}  // namespace baton::engine
