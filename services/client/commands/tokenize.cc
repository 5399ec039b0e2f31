#include <iostream>

#include "absl/flags/flag.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "services/client/commands/commands.h"
#include "services/client/error_text.h"
#include "services/client/flags.h"

ABSL_FLAG(bool, add_special_tokens, true, "tokenize: add the tokenizer's special tokens to a text");

namespace baton::client {

absl::Status RunTokenize() {
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  inference::v1::TokenizeRequest request;
  request.set_model(absl::GetFlag(FLAGS_model));
  request.set_add_special_tokens(absl::GetFlag(FLAGS_add_special_tokens));
  if (!absl::GetFlag(FLAGS_chat).empty()) {
    inference::v1::Message* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(absl::GetFlag(FLAGS_chat));
  } else if (!absl::GetFlag(FLAGS_prompt_file).empty()) {
    BATON_ASSIGN_OR_RETURN(*request.mutable_text(), ReadTextFile(absl::GetFlag(FLAGS_prompt_file)));
  } else {
    request.set_text(absl::GetFlag(FLAGS_prompt));
  }
  grpc::ClientContext context;
  connection->Prepare(&context);
  inference::v1::TokenizeResponse response;
  BATON_RETURN_IF_ERROR(ReadableStatus(connection->stub().Tokenize(&context, request, &response)));
  nlohmann::ordered_json line;
  line["ids"] = std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
  if (request.has_chat()) {
    line["rendered"] = response.rendered();
  }
  std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
  return absl::OkStatus();
}

}  // namespace baton::client
