#include <memory>
#include <utility>

#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/worker/compute.h"
#include "common/worker/worker_options.h"
#include "services/lab/eval/collector.h"
#include "services/lab/eval/generator.h"

namespace baton::lab {
namespace {

class LocalGenerator : public Generator {
 public:
  LocalGenerator(std::unique_ptr<worker::Compute> compute, std::unique_ptr<engine::Engine> engine)
      : compute_(std::move(compute)), engine_(std::move(engine)) {}

  absl::StatusOr<GeneratedAnswer> Generate(engine::GenerateRequest request) override {
    const absl::Time start = absl::Now();
    const auto collector = std::make_shared<Collector>();
    BATON_RETURN_IF_ERROR(engine_->Submit(std::move(request), collector));
    GeneratedAnswer answer;
    BATON_ASSIGN_OR_RETURN(answer.stats, collector->Wait());
    answer.total_time = absl::Now() - start;
    answer.token_ids = collector->token_ids();
    answer.time_to_first_token = collector->first_token_time().value_or(start) - start;
    return answer;
  }

 private:
  const std::unique_ptr<worker::Compute> compute_;
  const std::unique_ptr<engine::Engine> engine_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> MakeLocalGenerator(worker::WorkerOptions options) {
  options.engine.role = engine::Role::kBoth;
  options.engine.page_dtype = options.compute;
  BATON_ASSIGN_OR_RETURN(auto compute, worker::LoadCompute(options));
  options.engine.calibration = compute->calibration;
  BATON_ASSIGN_OR_RETURN(auto engine,
                         engine::Engine::Create(std::move(compute->model),
                                                compute->backend->exec(),
                                                compute->backend->ops(),
                                                options.engine,
                                                /*reservations=*/nullptr,
                                                /*observer=*/nullptr));
  return std::make_unique<LocalGenerator>(std::move(compute), std::move(engine));
}

}  // namespace baton::lab
