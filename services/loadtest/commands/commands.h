// The sub-commands of baton-loadtest. Each reads its flags, blocks until it is done and returns
// what went wrong, readable as it is.
#pragma once

#include "absl/status/status.h"

namespace baton::loadtest {

// One load: a table on standard output and, with --out, files.
absl::Status RunLoad();

// Loads at one rate after another until the maximum goodput is found: a line per rate on standard
// output and, with --out, search.json.
absl::Status RunSearch();

// The report of one run that was written before, or of two side by side.
absl::Status RunReport();

}  // namespace baton::loadtest
