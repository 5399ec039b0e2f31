#include <iostream>

#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "services/client/commands/commands.h"
#include "services/client/error_text.h"
#include "services/client/flags.h"

namespace baton::client {

absl::Status RunModels() {
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  grpc::ClientContext context;
  connection->Prepare(&context);
  inference::v1::ListModelsResponse response;
  BATON_RETURN_IF_ERROR(ReadableStatus(connection->stub().ListModels(&context, {}, &response)));
  std::cout << absl::StrFormat(
      "%-40s %10s %10s %6s %14s\n", "model", "context", "vocabulary", "chat", "KV bytes/token");
  for (const inference::v1::ModelInfo& model : response.models()) {
    std::cout << absl::StrFormat("%-40s %10d %10d %6s %14d\n",
                                 model.name(),
                                 model.max_sequence_tokens(),
                                 model.vocab_size(),
                                 model.has_chat_template() ? "yes" : "no",
                                 model.kv_logical_bytes_per_token());
  }
  return absl::OkStatus();
}

}  // namespace baton::client
