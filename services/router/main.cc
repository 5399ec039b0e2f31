// baton-router: the public API in front of prefill and decode workers.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/config/host_port.h"
#include "common/config/run_main.h"
#include "common/rpc/end_at_signal.h"
#include "common/rpc/logging.h"
#include "common/rpc/port_file.h"
#include "common/rpc/shutdown_signal.h"
#include "common/rpc/tls_flags.h"
#include "common/trace/span_file.h"
#include "common/trace/trace_flags.h"
#include "services/router/router_options.h"
#include "services/router/server.h"

ABSL_FLAG(std::string,
          model,
          "",
          "HuggingFace model directory; tokenizer and configuration are read");
ABSL_FLAG(std::string,
          model_name,
          "",
          "name of the model in the API; default: the directory's name");
ABSL_FLAG(std::string, listen, "127.0.0.1:8000", "host:port of the API; port 0 takes a free one");
ABSL_FLAG(std::string,
          metrics_listen,
          "127.0.0.1:8001",
          "host:port of the status page and /metrics; empty: none");
ABSL_FLAG(std::string, port_file, "", "file that receives the ports in use as JSON");
ABSL_FLAG(std::string,
          prefill,
          "",
          "prefill workers: HOST:PORT[,HOST:PORT...] or dns:///NAME:PORT; may be empty with decode "
          "workers of role both");
ABSL_FLAG(std::string, decode, "", "decode workers, in the same form");
ABSL_FLAG(uint32_t, default_max_tokens, 512, "max_tokens of requests that don't say");
ABSL_FLAG(int64_t, max_queue_requests, 1024, "requests that may wait");
ABSL_FLAG(int64_t, max_queue_tokens, 4'000'000, "prompt tokens that may wait");
ABSL_FLAG(int64_t, max_queue_bytes, int64_t{256} << 20, "bytes of prompts that may wait");
ABSL_FLAG(int32_t, max_attempts, 3, "lost workers after which a request fails");
ABSL_FLAG(absl::Duration,
          endpoint_wait,
          absl::Seconds(5),
          "how long a request waits while no worker is ready");
ABSL_FLAG(int64_t,
          max_stream_buffer_bytes,
          int64_t{256} << 10,
          "output kept for a client that reads slowly before decode is no longer read");
ABSL_FLAG(int32_t, tokenizer_threads, 1, "threads that render and tokenize prompts");
ABSL_FLAG(double,
          trace_share,
          1.0,
          "with --trace_file: share of requests without a traceparent that begin a trace");
ABSL_FLAG(bool, vllm_metrics, false, "publish the metric names of vLLM as well");
ABSL_FLAG(absl::Duration,
          drain_timeout,
          absl::Seconds(30),
          "how long running requests may take after SIGTERM");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warning or error");

namespace baton::router {
namespace {

absl::Status CheckFlags() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", absl::GetFlag(FLAGS_model)));
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("decode", absl::GetFlag(FLAGS_decode)));
  BATON_RETURN_IF_ERROR(
      config::ParseHostPort(absl::GetFlag(FLAGS_listen), /*allow_port_zero=*/true).status());
  if (const std::string metrics = absl::GetFlag(FLAGS_metrics_listen); !metrics.empty()) {
    BATON_RETURN_IF_ERROR(config::ParseHostPort(metrics, /*allow_port_zero=*/true).status());
  }
  constexpr int64_t kLarge = int64_t{1} << 40;
  const auto range = [](const char* name, int64_t value, int64_t min, int64_t max) {
    return config::CheckFlagRange(name, value, min, max);
  };
  BATON_RETURN_IF_ERROR(
      range("default_max_tokens", absl::GetFlag(FLAGS_default_max_tokens), 1, 1 << 24));
  BATON_RETURN_IF_ERROR(
      range("max_queue_requests", absl::GetFlag(FLAGS_max_queue_requests), 1, 1 << 20));
  BATON_RETURN_IF_ERROR(
      range("max_queue_tokens", absl::GetFlag(FLAGS_max_queue_tokens), 1, kLarge));
  BATON_RETURN_IF_ERROR(range("max_queue_bytes", absl::GetFlag(FLAGS_max_queue_bytes), 1, kLarge));
  BATON_RETURN_IF_ERROR(range("max_attempts", absl::GetFlag(FLAGS_max_attempts), 1, 100));
  BATON_RETURN_IF_ERROR(range("tokenizer_threads", absl::GetFlag(FLAGS_tokenizer_threads), 1, 256));
  if (absl::GetFlag(FLAGS_endpoint_wait) < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--endpoint_wait must be at least 0s");
  }
  return range(
      "max_stream_buffer_bytes", absl::GetFlag(FLAGS_max_stream_buffer_bytes), 1024, kLarge);
}

absl::StatusOr<RouterOptions> OptionsFromFlags() {
  BATON_ASSIGN_OR_RETURN(trace::SpanFileOptions trace, trace::SpanFileOptionsFromFlags());
  trace.new_trace_share = absl::GetFlag(FLAGS_trace_share);
  if (!(trace.new_trace_share >= 0.0 && trace.new_trace_share <= 1.0)) {
    return absl::InvalidArgumentError("--trace_share must be in [0, 1]");
  }
  return RouterOptions{
      .model = absl::GetFlag(FLAGS_model),
      .model_name = absl::GetFlag(FLAGS_model_name),
      .listen = absl::GetFlag(FLAGS_listen),
      .metrics_listen = absl::GetFlag(FLAGS_metrics_listen),
      .prefill = absl::GetFlag(FLAGS_prefill),
      .decode = absl::GetFlag(FLAGS_decode),
      .default_max_tokens = absl::GetFlag(FLAGS_default_max_tokens),
      .queue = {.max_requests = absl::GetFlag(FLAGS_max_queue_requests),
                .max_tokens = absl::GetFlag(FLAGS_max_queue_tokens),
                .max_bytes = absl::GetFlag(FLAGS_max_queue_bytes)},
      .max_attempts = absl::GetFlag(FLAGS_max_attempts),
      .max_stream_buffer_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_max_stream_buffer_bytes)),
      .endpoint_wait = absl::GetFlag(FLAGS_endpoint_wait),
      .tokenizer_threads = absl::GetFlag(FLAGS_tokenizer_threads),
      .vllm_metrics = absl::GetFlag(FLAGS_vllm_metrics),
      .trace = std::move(trace),
      .tls = rpc::TlsOptionsFromFlags()};
}

absl::Status Run(const config::Arguments& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError("unexpected argument `" + arguments.front() + "`");
  }
  BATON_RETURN_IF_ERROR(CheckFlags());
  rpc::ShutdownSignal signal;
  BATON_RETURN_IF_ERROR(rpc::InitLogging(absl::GetFlag(FLAGS_log_level)));
  BATON_ASSIGN_OR_RETURN(const RouterOptions options, OptionsFromFlags());
  BATON_RETURN_IF_ERROR(rpc::RemovePortFile(absl::GetFlag(FLAGS_port_file)));
  std::unique_ptr<RouterServer> server;
  {
    const rpc::EndAtSignal loading(&signal);
    BATON_ASSIGN_OR_RETURN(server, RouterServer::Start(options));
  }
  BATON_RETURN_IF_ERROR(
      rpc::WritePortFile(absl::GetFlag(FLAGS_port_file), server->port(), server->metrics_port()));
  spdlog::info("router listens on {} model={}", server->address(), server->core().model->name);
  signal.WaitFor(absl::InfiniteDuration());
  spdlog::info("draining");
  server->Drain(absl::GetFlag(FLAGS_drain_timeout));
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) {
  return baton::config::RunMain(
      argc,
      argv,
      {.name = "baton-router",
       .usage = "Serves baton.inference.v1.Inference and spreads requests over prefill and decode "
                "workers.\n\n  baton-router --model DIR --prefill HOST:PORT --decode HOST:PORT",
       .version = BATON_VERSION},
      baton::router::Run);
}
