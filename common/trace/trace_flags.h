// --trace_file and --trace_file_mib, the same for every service.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/metrics/registry.h"
#include "common/trace/span_file.h"

namespace baton::trace {

// Where and how much to trace, from the command line; an empty path: not at all. kInvalidArgument
// names the flag that is wrong.
absl::StatusOr<SpanFileOptions> SpanFileOptionsFromFlags();

// Opens what `options` say, null without a path. The three name the process in every line:
// "baton-router", its version, and what tells this start of it from all others. Lost spans are
// counted in `registry`, where the counter is from now on, also without a file.
absl::StatusOr<std::unique_ptr<SpanFile>> OpenSpanFile(SpanFileOptions options,
                                                       const std::string& service,
                                                       const std::string& version,
                                                       const std::string& instance,
                                                       std::shared_ptr<metrics::Registry> registry);

}  // namespace baton::trace
