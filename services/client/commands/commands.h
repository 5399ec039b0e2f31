// The sub-commands of baton-client. Each reads its flags, blocks until it is done and returns what
// went wrong, readable as it is.
#pragma once

#include "absl/status/status.h"

namespace baton::client {

// One request: text to standard output as it comes, accounting to standard error. With --case it
// fails unless the answer is exactly the expected one.
absl::Status RunGenerate();

// A conversation: every line of standard input is a user's turn.
absl::Status RunChat();

// Token ids of --prompt, --chat or --prompt_file as a JSON object.
absl::Status RunTokenize();

// Evaluation cases through the router.
absl::Status RunEval();

// The models that the router serves.
absl::Status RunModels();

// Whether the router is ready; with --wait, waits for it.
absl::Status RunHealth();

}  // namespace baton::client
