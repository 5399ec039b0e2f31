#include "tests/gpu/bench/model_first_token.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/engine/engine.h"
#include "common/engine/forgetful_sink.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_prefill.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::model {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
// For a prompt of 128K tokens of Llama-3.1-8B in each format, whose dense pages take 16 GiB.
constexpr int64_t kDensePoolBytes = 18 * kGiB;
constexpr kv::CodecPools kPools = {
    .diffkv_bytes = 12 * kGiB, .shadowkv_bytes = 12 * kGiB, .hidden_bytes = kGiB};

// Nothing is staged.
constexpr int64_t kStagingBytes = int64_t{1} << 20;

// Before every call, so that it meets a device that is idle whatever ran before: one that just
// worked is near its power limit, and clocks of its matrix units are then up to 5 % lower.
constexpr absl::Duration kPause = absl::Milliseconds(100);

struct Shape {
  int32_t prompts = 1;
  int32_t tokens = 0;
  int32_t repeats = 0;
  // The first is what the others are compared with.
  std::vector<std::string> policies = {"dense", "diffkv", "shadowkv"};
};

// Hidden states are a SwiftKV model's.
std::vector<Shape> Shapes(const FirstTokenOptions& options, bool swiftkv) {
  std::vector<Shape> shapes = {{.prompts = 1, .tokens = 2048, .repeats = 20},
                               {.prompts = 1, .tokens = 8192, .repeats = 20}};
  if (!options.quick) {
    shapes.insert(shapes.end(),
                  {{.prompts = kMostFirstTokenPrompts, .tokens = 512, .repeats = 20},
                   {.prompts = 1, .tokens = 32768, .repeats = 5},
                   {.prompts = 1, .tokens = 131071, .repeats = 5, .policies = {"diffkv"}}});
  }
  if (options.tokens > 0) {
    std::erase_if(shapes, [&](const Shape& shape) { return shape.tokens != options.tokens; });
  }
  for (Shape& shape : shapes) {
    if (swiftkv) shape.policies.emplace_back("hidden+shadowkv");
  }
  return shapes;
}

// Counts first tokens and ends of all requests of a call; remembers the first error.
class Arrivals {
 public:
  explicit Arrivals(int32_t prompts) : tokens_(prompts), ends_(prompts) {}

  void OnToken() { tokens_.DecrementCount(); }
  void OnDone(const absl::Status& status) {
    {
      const absl::MutexLock lock(&mutex_);
      status_.Update(status);
    }
    ends_.DecrementCount();
  }
  // Returns at the last first token, or the last end where a request has none.
  void WaitForTokens() { tokens_.Wait(); }
  absl::Status WaitForEnds() {
    ends_.Wait();
    const absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  absl::BlockingCounter tokens_;
  absl::BlockingCounter ends_;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Listener final : public engine::RequestListener {
 public:
  explicit Listener(Arrivals& arrivals) : arrivals_(arrivals) {}

  void OnTokens(int32_t /*sequence*/, std::span<const engine::TokenOutput> /*tokens*/) override {
    CountToken();
  }
  void OnFinished(int32_t /*sequence*/, const engine::SequenceFinish& /*finish*/) override {}
  void OnDone(const absl::Status& status, const engine::RequestStats& /*stats*/) override {
    CountToken();
    arrivals_.OnDone(status);
  }

 private:
  void CountToken() {
    if (!std::exchange(counted_, true)) arrivals_.OnToken();
  }

  Arrivals& arrivals_;
  bool counted_ = false;
};

std::vector<int32_t> PromptOf(int32_t tokens, int32_t seed, int32_t vocabulary) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  uint32_t state = 2463534242u + static_cast<uint32_t>(seed);
  for (int32_t& id : prompt) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    id = static_cast<int32_t>(state % static_cast<uint32_t>(vocabulary));
  }
  return prompt;
}

struct Times {
  double first_token = 0.0;
  double coded_after = 0.0;
};

// A prefill worker's engine with nothing else to do.
class Subject {
 public:
  static absl::StatusOr<Subject> Create(const kernels::Backend& backend,
                                        std::unique_ptr<Model> model,
                                        int32_t chunk_tokens) {
    engine::EngineOptions options;
    options.role = engine::Role::kPrefill;
    options.staging_bytes = kStagingBytes;
    options.kv_pool_bytes = kDensePoolBytes;
    options.codec_pools = kPools;
    options.step_token_budget = kPrefillStepRows;
    options.prefill_chunk_tokens = chunk_tokens;
    options.max_running_sequences = kMostFirstTokenPrompts;
    BATON_ASSIGN_OR_RETURN(
        std::unique_ptr<engine::Engine> engine,
        engine::Engine::Create(
            std::move(model), backend.exec(), backend.ops(), options, nullptr, nullptr));
    return Subject(backend, std::move(engine), chunk_tokens);
  }

  int32_t chunk_tokens() const { return chunk_tokens_; }

  const checkpoint::ModelConfig& config() const { return engine_->model().config(); }

  absl::StatusOr<Times> Run(const Shape& shape, const std::string& policy) {
    Arrivals arrivals(shape.prompts);
    std::vector<engine::GenerateRequest> requests;
    requests.reserve(static_cast<size_t>(shape.prompts));
    for (int32_t i = 0; i < shape.prompts; ++i) requests.push_back(Request(shape, policy));
    absl::SleepFor(kPause);
    const Stopwatch watch;
    for (engine::GenerateRequest& request : requests) {
      const auto listener = std::make_shared<Listener>(arrivals);
      if (absl::Status status = engine_->Submit(std::move(request), listener); !status.ok()) {
        listener->OnDone(status, {});
      }
    }
    arrivals.WaitForTokens();
    Times times = {.first_token = watch.Seconds()};
    BATON_RETURN_IF_ERROR(arrivals.WaitForEnds());
    // The executor has nothing to do any more, so its queues are free.
    const kernels::ExecContext& exec = backend_->exec();
    BATON_RETURN_IF_ERROR(exec.side->Join());
    BATON_RETURN_IF_ERROR(exec.queue->Wait());
    times.coded_after = watch.Seconds() - times.first_token;
    return times;
  }

 private:
  Subject(const kernels::Backend& backend,
          std::unique_ptr<engine::Engine> engine,
          int32_t chunk_tokens)
      : backend_(&backend), engine_(std::move(engine)), chunk_tokens_(chunk_tokens) {}

  engine::GenerateRequest Request(const Shape& shape, const std::string& policy) {
    ++requests_;
    engine::GenerateRequest request;
    request.request_id = absl::StrCat("request-", requests_);
    request.prompt = PromptOf(shape.tokens, requests_, config().vocab_size);
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 1;
    request.kv_policy = policy;
    request.sink = std::make_unique<engine::ForgetfulSink>();
    return request;
  }

  const kernels::Backend* backend_;
  std::unique_ptr<engine::Engine> engine_;
  int32_t chunk_tokens_;
  int32_t requests_ = 0;
};

struct Samples {
  std::vector<double> first_token;
  std::vector<double> coded_after;
  absl::Status status;
};

// The first call of a policy only warms up.
std::vector<Samples> Sample(Subject& subject, const Shape& shape) {
  std::vector<Samples> all(shape.policies.size());
  for (int32_t repeat = 0; repeat <= shape.repeats; ++repeat) {
    for (size_t i = 0; i < all.size(); ++i) {
      Samples& samples = all[i];
      if (!samples.status.ok()) continue;
      const absl::StatusOr<Times> times = subject.Run(shape, shape.policies[i]);
      samples.status = times.status();
      if (times.ok() && repeat > 0) {
        samples.first_token.push_back(times->first_token);
        samples.coded_after.push_back(times->coded_after);
      }
    }
  }
  return all;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2.0;
}

bool Measure(Subject& subject,
             const std::string& name,
             const Shape& shape,
             FirstTokenSeconds& plain) {
  const std::vector<Samples> all = Sample(subject, shape);
  bool measured = true;
  for (size_t i = 0; i < all.size(); ++i) {
    ModelRow row("first_token", name);
    row.Add("policy", shape.policies[i]);
    row.Add("prompts", int64_t{shape.prompts}).Add("tokens", int64_t{shape.tokens});
    row.Add("chunk", int64_t{subject.chunk_tokens()});
    if (!all[i].status.ok()) {
      measured = row.Print(all[i].status) && measured;
      continue;
    }
    const double seconds = Median(all[i].first_token);
    const double rate =
        ModelCost(subject.config()).PrefillOperations(shape.prompts, shape.tokens) / seconds;
    row.Add("ms", seconds * 1e3, 3);
    if (i > 0 && all[0].status.ok()) {
      row.Add("to_dense", seconds / Median(all[0].first_token), 4);
    }
    row.Add("coded_after_ms", Median(all[i].coded_after) * 1e3, 3);
    row.Add("tokens_per_s", 1.0 * shape.prompts * shape.tokens / seconds, 0);
    row.Add("tflop_per_s", rate * 1e-12, 1).Add("share_of_756", rate / 756e12, 3);
    const FirstTokenSeconds::key_type key(shape.policies[i], {shape.prompts, shape.tokens});
    if (!subject.config().swiftkv()) {
      plain[key] = seconds;
    } else if (const auto it = plain.find(key); it != plain.end()) {
      row.Add("speedup", it->second / seconds, 3);
    }
    row.Print();
  }
  return measured;
}

}  // namespace

bool MeasureFirstTokens(const kernels::Backend& backend,
                        const std::string& name,
                        std::unique_ptr<Model> model,
                        const FirstTokenOptions& options,
                        FirstTokenSeconds& plain) {
  absl::StatusOr<Subject> subject =
      Subject::Create(backend, std::move(model), options.chunk_tokens);
  if (!subject.ok()) {
    return ModelRow("first_token", name).Print(subject.status());
  }
  bool measured = true;
  for (const Shape& shape : Shapes(options, subject->config().swiftkv())) {
    measured = Measure(*subject, name, shape, plain) && measured;
  }
  return measured;
}

}  // namespace baton::model
