#include "services/loadtest/execute.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "spdlog/spdlog.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/eval/eval_case.h"
#include "common/eval/read_cases.h"
#include "common/rpc/channel.h"
#include "common/rpc/limits.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/loadtest/arrivals/arrival_schedule.h"
#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/arrivals/trace.h"
#include "services/loadtest/arrivals/unit_intervals.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/self_use.h"
#include "services/loadtest/report/progress.h"
#include "services/loadtest/scrape/scraper.h"
#include "services/loadtest/stream/driver.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/stream/live_counters.h"
#include "services/loadtest/stream/request_mix.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/timer_queue.h"
#include "services/loadtest/workload/eval_workload.h"
#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/share_gpt.h"
#include "services/loadtest/workload/synthetic.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {
namespace {

absl::StatusOr<Driver::Stubs> Connect(const LoadOptions& options) {
  BATON_RETURN_IF_ERROR(config::ParseHostPort(options.router).status());
  Driver::Stubs stubs;
  for (int i = 0; i < options.connections; ++i) {
    BATON_ASSIGN_OR_RETURN(const auto channel,
                           rpc::MakeChannel(options.router, options.tls, rpc::Exposure::kPublic));
    if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + options.connect_timeout))) {
      return absl::UnavailableError(absl::StrCat("no connection to ",
                                                 options.router,
                                                 " within ",
                                                 absl::FormatDuration(options.connect_timeout),
                                                 ": does the router run there, and does it want "
                                                 "--tls_ca?"));
    }
    stubs.push_back(inference::v1::Inference::NewStub(channel));
  }
  return stubs;
}

absl::StatusOr<inference::v1::ModelInfo> AskModel(const LoadOptions& options,
                                                  inference::v1::Inference::Stub& stub) {
  grpc::ClientContext context;
  rpc::SetDeadline(absl::Now() + options.connect_timeout, &context);
  inference::v1::GetModelInfoRequest request;
  request.set_model(options.driver.model);
  inference::v1::ModelInfo model;
  BATON_RETURN_IF_ERROR(
      WithContext(rpc::FromGrpcStatus(stub.GetModelInfo(&context, request, &model)),
                  absl::StrCat("asking ", options.router, " for its model")));
  return model;
}

// Workload and schedule; the latter null for a closed loop.
struct Load {
  std::unique_ptr<Workload> workload;
  std::unique_ptr<ArrivalSchedule> schedule;
  std::vector<Stage> stages = {};
  absl::Duration length = absl::InfiniteDuration();  // of the stages
};

absl::StatusOr<std::unique_ptr<Workload>> MakeSynthetic(const WorkloadOptions& options,
                                                        const inference::v1::ModelInfo& model) {
  BATON_ASSIGN_OR_RETURN(const auto input, LengthDistribution::Parse(options.input));
  BATON_ASSIGN_OR_RETURN(const auto output, LengthDistribution::Parse(options.output));
  return MakeSyntheticWorkload({.input = input,
                                .output = output,
                                .words = options.words,
                                .prefix_length = options.prefix_length,
                                .prefixes = options.prefixes,
                                .turns = options.turns,
                                .ignore_eos = options.ignore_eos.value_or(true),
                                .seed = options.seed},
                               model);
}

absl::StatusOr<std::unique_ptr<Workload>> MakeRecorded(const WorkloadOptions& options) {
  BATON_ASSIGN_OR_RETURN(const auto output, LengthDistribution::Parse(options.output));
  BATON_ASSIGN_OR_RETURN(RecordedFile file, ReadShareGpt(options.sharegpt));
  if (file.left_out > 0) {
    spdlog::warn("{}: {} of {} conversations have no turn to send and are left out",
                 options.sharegpt,
                 file.left_out,
                 file.left_out + static_cast<int64_t>(file.conversations.size()));
  }
  return MakeRecordedWorkload(std::move(file.conversations),
                              {.output = output,
                               .turns = options.turns,
                               .ignore_eos = options.ignore_eos.value_or(false),
                               .repeat = options.repeat,
                               .seed = options.seed});
}

absl::StatusOr<std::unique_ptr<Workload>> MakeWorkload(const WorkloadOptions& options,
                                                       const inference::v1::ModelInfo& model) {
  if (!options.cases.empty()) {
    BATON_ASSIGN_OR_RETURN(std::vector<eval::EvalCase> cases, eval::ReadCases(options.cases));
    return MakeEvalWorkload(std::move(cases), options.repeat);
  }
  if (!options.sharegpt.empty()) {
    return MakeRecorded(options);
  }
  return MakeSynthetic(options, model);
}

absl::StatusOr<Load> MakeLoad(const LoadOptions& options, const inference::v1::ModelInfo& model) {
  const ArrivalOptions& arrivals = options.arrivals;
  Load load;
  if (!arrivals.trace.empty()) {
    BATON_ASSIGN_OR_RETURN(std::vector<TraceEntry> trace,
                           ReadTrace(arrivals.trace, arrivals.trace_speed));
    load.schedule = MakeTraceSchedule(trace);
    load.workload = MakeTraceWorkload(std::move(trace), model, options.workload.seed);
    return load;
  }
  BATON_ASSIGN_OR_RETURN(load.workload, MakeWorkload(options.workload, model));
  if (arrivals.open_loop()) {
    BATON_ASSIGN_OR_RETURN(const ArrivalProcess process, ParseArrivalProcess(arrivals.process));
    RateProfile profile = RateProfile::Constant(arrivals.rate);
    if (!arrivals.stages.empty()) {
      BATON_ASSIGN_OR_RETURN(profile, RateProfile::Parse(arrivals.stages));
      load.stages = profile.stages();
      load.length = profile.length();
    }
    load.schedule = MakeRateSchedule(
        std::move(profile), UnitIntervals(process, arrivals.burstiness, options.workload.seed));
  }
  return load;
}

ProgressGoal GoalOf(const LoadOptions& options, const Load& load) {
  return {.duration = std::min(options.driver.duration, load.length),
          .requests = options.driver.max_requests};
}

// Shows progress and listens for signals while a driver runs.
class Watch {
 public:
  Watch(Driver* driver,
        const RunClock* clock,
        const LiveCounters* counters,
        const ProgressGoal& goal,
        rpc::ShutdownSignal* signal)
      : thread_([this, driver, clock, counters, goal, signal] {
          Progress progress(goal);
          while (!stop_) {
            if (signal == nullptr) {
              absl::SleepFor(kInterval);
            } else if (signal->WaitFor(kInterval)) {
              driver->Stop();
            }
            progress.Show(clock->Elapsed(), *counters);
          }
        }) {}
  ~Watch() {
    stop_ = true;
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  static constexpr absl::Duration kInterval = absl::Milliseconds(200);
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void TakeSelfUse(absl::Duration cpu_before, const RunClock& clock, RunResult* result) {
  result->self.wall = clock.Elapsed();
  result->self.cpu = ProcessCpuTime() - cpu_before;
  result->self.cores = AvailableCores();
  for (const RequestRecord& record : result->records) {
    result->self.lateness_ms.Add(LatenessMs(record));
  }
}

// Sends `load`; fills records, hooks and what is known of the load test itself.
void Drive(const LoadOptions& options,
           const Driver::Stubs& stubs,
           const RequestMix& mix,
           Load& load,
           rpc::ShutdownSignal* signal,
           RunResult* result) {
  DriverOptions driver_options = options.driver;
  driver_options.run_id = absl::StrFormat("lt-%x", absl::ToUnixNanos(absl::Now()));
  const absl::Duration cpu_before = ProcessCpuTime();
  LiveCounters counters;
  const RunClock clock;
  std::unique_ptr<HookRunner> hooks;
  {
    TimerQueue timers(&clock);
    hooks = std::make_unique<HookRunner>(options.hooks, &clock, &timers);
    Driver driver(driver_options,
                  &stubs,
                  &mix,
                  load.workload.get(),
                  load.schedule.get(),
                  {.clock = &clock, .timers = &timers, .counters = &counters});
    const Watch watch(&driver, &clock, &counters, GoalOf(options, load), signal);
    result->records = driver.Run();
    result->unsent = driver.unsent();
    result->stopped = driver.stopped();
  }
  result->started = clock.wall_start();
  result->hooks = hooks->Collect();
  TakeSelfUse(cpu_before, clock, result);
}

}  // namespace

absl::StatusOr<RunResult> Execute(const LoadOptions& options, rpc::ShutdownSignal* signal) {
  BATON_RETURN_IF_ERROR(Validate(options));
  BATON_ASSIGN_OR_RETURN(const RequestMix mix, RequestMix::Make(options.mix));
  BATON_ASSIGN_OR_RETURN(const Driver::Stubs stubs, Connect(options));
  BATON_ASSIGN_OR_RETURN(const inference::v1::ModelInfo model, AskModel(options, *stubs.front()));
  BATON_ASSIGN_OR_RETURN(Load load, MakeLoad(options, model));
  RunResult result;
  result.title = options.title;
  result.settings = options.settings;
  result.warmup = options.warmup;
  result.slos = options.slos;
  result.stages = load.stages;
  Scraper scraper(options.metrics_urls, options.metrics_interval);
  Drive(options, stubs, mix, load, signal, &result);
  result.services = scraper.Finish();
  return result;
}

}  // namespace baton::loadtest
