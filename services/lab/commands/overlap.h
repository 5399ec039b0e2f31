// baton-lab overlap: whether ShadowKV's key basis of a prompt holds in later turns.
#pragma once

#include "absl/status/status.h"

namespace baton::lab {

// Runs the command with the process's flags; prints the table.
absl::Status RunOverlap();

}  // namespace baton::lab
