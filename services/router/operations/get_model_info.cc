#include "services/router/operations/get_model_info.h"

#include "common/base/status_macros.h"
#include "services/router/validate/check_request.h"
#include "services/router/validate/prepare_request.h"

namespace baton::router {

absl::StatusOr<inference::v1::ModelInfo> GetModelInfo(const RouterCore& core,
                                                      const std::string& name) {
  const ServedModel& model = *core.model;
  BATON_RETURN_IF_ERROR(CheckModelName(model, name));
  inference::v1::ModelInfo info;
  info.set_name(model.name);
  info.set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  info.set_max_sequence_tokens(ContextTokens(model, core.workers->limits()));
  info.set_has_chat_template(!model.tokenizer.chat_templates.empty());
  for (const int32_t id : model.config.eos_token_ids) {
    info.add_eos_token_ids(static_cast<uint32_t>(id));
  }
  for (std::string& format : core.workers->limits().kv_formats) {
    info.add_kv_policies(std::move(format));
  }
  info.set_default_max_tokens(core.default_max_tokens);
  info.set_kv_logical_bytes_per_token(model.kv_logical_bytes_per_token());
  return info;
}

}  // namespace baton::router
