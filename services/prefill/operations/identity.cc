#include "services/prefill/operations/identity.h"

#include <string>

namespace baton::prefill::operations {

std::string IdentityOf(const worker::v1::PrefillRequest& request) {
  worker::v1::PrefillRequest identity;
  identity.set_prompt_token_ids(request.prompt_token_ids());
  *identity.mutable_sampling() = request.sampling();
  identity.set_kv_policy(request.kv_policy());
  return identity.SerializeAsString();
}

}  // namespace baton::prefill::operations
