#include "common/trace/trace_flags.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "prometheus/counter.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"
#include "common/trace/span_file.h"

ABSL_FLAG(std::string,
          trace_file,
          "",
          "file that receives the spans of sampled requests as OTLP/JSON lines; empty: none");
ABSL_FLAG(int64_t,
          trace_file_mib,
          64,
          "size at which --trace_file becomes PATH.1, in place of the one before");

namespace baton::trace {

absl::StatusOr<SpanFileOptions> SpanFileOptionsFromFlags() {
  const int64_t mib = absl::GetFlag(FLAGS_trace_file_mib);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("trace_file_mib", mib, 1, int64_t{1} << 20));
  return SpanFileOptions{.path = absl::GetFlag(FLAGS_trace_file), .max_bytes = mib << 20};
}

absl::StatusOr<std::unique_ptr<SpanFile>> OpenSpanFile(
    SpanFileOptions options,
    const std::string& service,
    const std::string& version,
    const std::string& instance,
    std::shared_ptr<metrics::Registry> registry) {
  prometheus::Counter& dropped = registry->Get(metrics::kTraceSpansDropped);
  if (options.path.empty()) {
    return nullptr;
  }
  options.resource = {{"service.name", service},
                      {"service.version", version},
                      {"service.instance.id", instance},
                      {"process.pid", int64_t{getpid()}}};
  options.on_dropped = [&dropped, keep_alive = std::move(registry)](size_t spans) {
    dropped.Increment(static_cast<double>(spans));
  };
  return SpanFile::Open(std::move(options));
}

}  // namespace baton::trace
