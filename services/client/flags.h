// Flags that several commands read.
#pragma once

#include <string>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/client/connection.h"

ABSL_DECLARE_FLAG(std::string, router);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, prompt);
ABSL_DECLARE_FLAG(std::string, chat);
ABSL_DECLARE_FLAG(std::string, prompt_file);
ABSL_DECLARE_FLAG(std::string, kv);

namespace baton::client {

// Connects to --router with --tls_* and --timeout.
absl::StatusOr<std::unique_ptr<Connection>> ConnectionFromFlags();

// Sampling, stopping and output of a request, from --temperature, --max_tokens and so on; fields
// whose flag is not given stay unset.
void SetGenerationFields(inference::v1::GenerateRequest* request);

// The whole of a file; "-" is standard input. kNotFound, or kInvalidArgument above 64 MiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace baton::client
