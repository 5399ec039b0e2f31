#include "services/client/case_request.h"

#include <string>

namespace baton::client {

void SetCase(const eval::EvalCase& eval_case, inference::v1::GenerateRequest* request) {
  inference::v1::Chat* chat = request->mutable_chat();
  chat->clear_messages();
  for (const auto& message : eval_case.messages) {
    inference::v1::Message* turn = chat->add_messages();
    turn->set_role(message.value("role", std::string()));
    turn->set_content(message.value("content", std::string()));
  }
  request->mutable_sampling()->set_temperature(0.0f);
  request->mutable_stopping()->set_max_tokens(static_cast<uint32_t>(eval_case.max_new_tokens));
}

}  // namespace baton::client
