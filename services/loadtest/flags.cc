#include "services/loadtest/flags.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/rpc/tls_flags.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/stream/driver.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/stream/request_mix.h"
#include "services/loadtest/workload/length_distribution.h"

ABSL_FLAG(std::string, router, "127.0.0.1:8000", "host:port of the router");
ABSL_FLAG(std::string, model, "", "name of the model; default: the only one");
ABSL_FLAG(int32_t, connections, 1, "connections to the router, used in turn");

ABSL_FLAG(double, rate, 0, "open loop: requests (conversations) per second");
ABSL_FLAG(std::string,
          stages,
          "",
          "open loop: LENGTH@RATE or LENGTH@RATE..RATE, separated by commas: 30s@2,1m@2..20");
ABSL_FLAG(std::string, trace, "", "open loop: JSONL trace to replay (docs/load-testing.md)");
ABSL_FLAG(double, trace_speed, 1, "replay a trace this many times faster");
ABSL_FLAG(std::string,
          arrivals,
          "poisson",
          "gaps of --rate and --stages: constant, poisson, gamma");
ABSL_FLAG(double, burstiness, 1, "shape of gamma gaps; 1: Poisson, less: bursts");
ABSL_FLAG(int64_t,
          concurrency,
          0,
          "closed loop: conversations at once; in an open loop: most requests at once, 0: any");
ABSL_FLAG(int64_t, requests, 0, "send at most this many; 0: no limit");
ABSL_FLAG(absl::Duration, duration, absl::InfiniteDuration(), "send for so long");
ABSL_FLAG(absl::Duration, warmup, absl::ZeroDuration(), "leave the first part out of the figures");
ABSL_FLAG(absl::Duration, drain, absl::Seconds(60), "time for open requests after the last one");

ABSL_FLAG(std::string, cases, "", "evaluation sets to ask, answers scored");
ABSL_FLAG(std::string, sharegpt, "", "JSONL file of conversations in ShareGPT's form to ask");
ABSL_FLAG(bool, repeat, false, "begin a dataset again when it ends");
ABSL_FLAG(std::string,
          input,
          "512",
          "synthetic prompt tokens: N, uniform:N..N, normal:MEAN,DEV, lognormal:MEDIAN,DEV");
ABSL_FLAG(std::string, output, "128", "answer tokens (max_tokens), in the same forms");
ABSL_FLAG(bool, words, false, "synthetic prompts as words instead of token ids");
ABSL_FLAG(int64_t, prefix_length, 0, "tokens of a shared prefix in front of synthetic prompts");
ABSL_FLAG(int64_t, prefixes, 1, "number of different shared prefixes");
ABSL_FLAG(int64_t, turns, 1, "turns of a conversation (--cases: as in the file)");
ABSL_FLAG(absl::Duration, think_time, absl::ZeroDuration(), "between an answer and the next turn");
ABSL_FLAG(bool, sessions, false, "let the server keep a conversation's KV for its next turn");
ABSL_FLAG(absl::optional<bool>,
          ignore_eos,
          absl::nullopt,
          "generate until max_tokens; default: for synthetic prompts only");
ABSL_FLAG(uint64_t, seed, 1, "of arrivals, prompts, mixes and faults");
ABSL_FLAG(std::string, kv, "", "KV policies: POLICY or POLICY@WEIGHT, separated by ;");

ABSL_FLAG(std::string, deadlines, "", "deadlines: none or DURATION, with @WEIGHT, separated by ;");
ABSL_FLAG(double, cancel_share, 0, "share of requests to cancel at random moments");
ABSL_FLAG(absl::Duration, cancel_within, absl::Seconds(1), "the latest such moment after sending");
ABSL_FLAG(double, slow_share, 0, "share of requests to read slowly");
ABSL_FLAG(absl::Duration, slow_delay, absl::Milliseconds(100), "their pause before every message");
ABSL_FLAG(std::string, hooks, "", "file of lines TIME COMMAND, run by the shell during the load");

ABSL_FLAG(std::string,
          slo,
          "server,interactive,long-context",
          "objectives of goodput, or TTFT/TPOT");
ABSL_FLAG(std::vector<std::string>, metrics_urls, {}, "http://host:port/metrics of the services");
ABSL_FLAG(absl::Duration, metrics_interval, absl::Seconds(2), "between two scrapes");
ABSL_FLAG(std::string, title, "", "name of the run in the report");
ABSL_FLAG(std::string, out, "", "folder for the results; it is made");
ABSL_FLAG(bool, token_times, false, "write the time of every token to requests.jsonl");

namespace baton::loadtest {
namespace {

// Flags that were given, for the report; those of TLS name files of this machine and stay out.
nlohmann::ordered_json GivenFlags() {
  std::map<std::string, std::string> given;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (flag->CurrentValue() != flag->DefaultValue() && !absl::StartsWith(name, "tls_") &&
        name != "flagfile") {
      given.emplace(name, flag->CurrentValue());
    }
  }
  return given;
}

ArrivalOptions ArrivalsFromFlags() {
  return {.rate = absl::GetFlag(FLAGS_rate),
          .stages = absl::GetFlag(FLAGS_stages),
          .trace = absl::GetFlag(FLAGS_trace),
          .trace_speed = absl::GetFlag(FLAGS_trace_speed),
          .process = absl::GetFlag(FLAGS_arrivals),
          .burstiness = absl::GetFlag(FLAGS_burstiness)};
}

WorkloadOptions WorkloadFromFlags() {
  WorkloadOptions options{.cases = absl::GetFlag(FLAGS_cases),
                          .sharegpt = absl::GetFlag(FLAGS_sharegpt),
                          .input = absl::GetFlag(FLAGS_input),
                          .output = absl::GetFlag(FLAGS_output),
                          .words = absl::GetFlag(FLAGS_words),
                          .prefix_length = absl::GetFlag(FLAGS_prefix_length),
                          .prefixes = absl::GetFlag(FLAGS_prefixes),
                          .turns = absl::GetFlag(FLAGS_turns),
                          .ignore_eos = std::nullopt,
                          .repeat = absl::GetFlag(FLAGS_repeat),
                          .seed = absl::GetFlag(FLAGS_seed)};
  if (const auto ignore_eos = absl::GetFlag(FLAGS_ignore_eos); ignore_eos.has_value()) {
    options.ignore_eos = *ignore_eos;
  }
  return options;
}

DriverOptions DriverFromFlags() {
  return {.concurrency = absl::GetFlag(FLAGS_concurrency),
          .max_requests = absl::GetFlag(FLAGS_requests),
          .duration = absl::GetFlag(FLAGS_duration),
          .think_time = absl::GetFlag(FLAGS_think_time),
          .drain = absl::GetFlag(FLAGS_drain),
          .sessions = absl::GetFlag(FLAGS_sessions),
          .run_id = "",
          .model = absl::GetFlag(FLAGS_model)};
}

RequestMixOptions MixFromFlags() {
  return {.kv_policies = absl::GetFlag(FLAGS_kv),
          .deadlines = absl::GetFlag(FLAGS_deadlines),
          .cancel_share = absl::GetFlag(FLAGS_cancel_share),
          .cancel_within = absl::GetFlag(FLAGS_cancel_within),
          .slow_share = absl::GetFlag(FLAGS_slow_share),
          .slow_delay = absl::GetFlag(FLAGS_slow_delay),
          .seed = absl::GetFlag(FLAGS_seed)};
}

absl::StatusOr<std::vector<Hook>> HooksFromFlags() {
  const std::string path = absl::GetFlag(FLAGS_hooks);
  if (path.empty()) {
    return std::vector<Hook>();
  }
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("flag --hooks: can't read ", path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  absl::StatusOr<std::vector<Hook>> hooks = ParseHooks(text);
  BATON_RETURN_IF_ERROR(WithContext(hooks.status(), absl::StrCat("flag --hooks: ", path)));
  return hooks;
}

absl::Status CheckFlags() {
  constexpr int64_t kMost = int64_t{1} << 31;
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("connections", absl::GetFlag(FLAGS_connections), 1, 256));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("concurrency", absl::GetFlag(FLAGS_concurrency), 0, 1 << 20));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("requests", absl::GetFlag(FLAGS_requests), 0, kMost));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange(
      "prefix_length", absl::GetFlag(FLAGS_prefix_length), 0, LengthDistribution::kMaxLength));
  if (absl::GetFlag(FLAGS_metrics_interval) < absl::Milliseconds(100)) {
    return absl::InvalidArgumentError("flag --metrics_interval must be at least 100ms");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadOptions> LoadOptionsFromFlags() {
  BATON_RETURN_IF_ERROR(CheckFlags());
  LoadOptions options{.router = absl::GetFlag(FLAGS_router),
                      .tls = rpc::TlsOptionsFromFlags(),
                      .connections = absl::GetFlag(FLAGS_connections),
                      .arrivals = ArrivalsFromFlags(),
                      .workload = WorkloadFromFlags(),
                      .driver = DriverFromFlags(),
                      .mix = MixFromFlags(),
                      .hooks = {},
                      .warmup = absl::GetFlag(FLAGS_warmup),
                      .slos = {},
                      .metrics_urls = absl::GetFlag(FLAGS_metrics_urls),
                      .metrics_interval = absl::GetFlag(FLAGS_metrics_interval),
                      .title = absl::GetFlag(FLAGS_title),
                      .settings = GivenFlags()};
  BATON_ASSIGN_OR_RETURN(options.hooks, HooksFromFlags());
  BATON_ASSIGN_OR_RETURN(options.slos, ParseSlos(absl::GetFlag(FLAGS_slo)));
  return options;
}

}  // namespace baton::loadtest
