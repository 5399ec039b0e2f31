// The command line of a load.
#pragma once

#include <string>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"

#include "services/loadtest/load_options.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(bool, token_times);

namespace baton::loadtest {

// What the flags say; kInvalidArgument names the flag that is wrong, kNotFound a --hooks file that
// is not there.
absl::StatusOr<LoadOptions> LoadOptionsFromFlags();

}  // namespace baton::loadtest
