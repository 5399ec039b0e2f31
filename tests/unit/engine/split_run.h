// Requests to one engine, and to a prefill and a decode engine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {

constexpr int32_t kSplitMaxTokens = 70;

inline std::unique_ptr<checkpoint::Checkpoint> OpenModel(const std::string& name) {
  auto opened = checkpoint::Checkpoint::Open(BATON_SOURCE_DIR "/tests/data/models/" + name, {});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

inline GenerateRequest MakeRequest(const std::string& policy, int32_t salt) {
  GenerateRequest request;
  request.request_id = std::to_string(salt);
  request.kv_policy = policy;
  request.sampling.temperature = salt % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.top_k = salt == 3 ? 20 : 0;
  request.sampling.seed = static_cast<uint64_t>(salt);
  request.sampling.max_tokens = kSplitMaxTokens;
  for (int32_t i = 0; i < 300 - 71 * salt; ++i) {
    request.prompt.push_back((i * i * 31 + i * 7 + salt * 101) % 4000);
  }
  return request;
}

inline ReserveRequest ReserveFor(const GenerateRequest& request) {
  ReserveRequest reserve;
  reserve.request_id = request.request_id;
  reserve.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  reserve.sampling = request.sampling;
  reserve.kv_policy = request.kv_policy;
  return reserve;
}

// What a request gets from two engines.
struct SplitRun {
  std::shared_ptr<RecordingListener> prefill = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> decode = std::make_shared<RecordingListener>();

  std::vector<int32_t> tokens(int32_t index = 0) const {
    std::vector<int32_t> all = prefill->tokens(index);
    const std::vector<int32_t> rest = decode->tokens(index);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  void Await() const {
    EXPECT_TRUE(prefill->AwaitDone());
    EXPECT_TRUE(prefill->status().ok()) << prefill->status();
    EXPECT_TRUE(decode->AwaitDone());
    EXPECT_TRUE(decode->status().ok()) << decode->status();
  }
};

// `prefill` ships the request to `decode`, which has reserved memory for it.
inline SplitRun Split(Engine& prefill,
                      Engine& decode,
                      GenerateRequest request,
                      bool reads_devices = false) {
  SplitRun run;
  auto grant = AwaitGrant(decode, ReserveFor(request), run.decode);
  EXPECT_TRUE(grant.ok()) << grant.status();
  if (grant.ok()) {
    request.sink = std::make_unique<CopySink>(decode, *std::move(grant), reads_devices);
    const absl::Status status = prefill.Submit(std::move(request), run.prefill);
    EXPECT_TRUE(status.ok()) << status;
  }
  return run;
}

// One engine does both, and is waited for.
inline std::shared_ptr<RecordingListener> Alone(Engine& both, GenerateRequest request) {
  auto listener = std::make_shared<RecordingListener>();
  const absl::Status status = both.Submit(std::move(request), listener);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok()) << listener->status();
  return listener;
}

}  // namespace baton::engine
