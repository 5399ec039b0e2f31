#include "services/router/operations/detokenize.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/rpc/status_details.h"
#include "services/router/validate/check_request.h"

namespace baton::router {
namespace {

constexpr int kMaxTokenIds = 1 << 18;  // about a book; its text fits the answer for usual tokens

}  // namespace

absl::Status Detokenize(const ServedModel& model,
                        const inference::v1::DetokenizeRequest& request,
                        inference::v1::DetokenizeResponse* response) {
  BATON_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  const auto vocab_size = static_cast<uint32_t>(model.config.vocab_size);
  if (request.token_ids_size() > kMaxTokenIds) {
    return rpc::InvalidField("token_ids", absl::StrCat("must have at most ", kMaxTokenIds));
  }
  for (int i = 0; i < request.token_ids_size(); ++i) {
    if (request.token_ids(i) >= vocab_size) {
      return rpc::InvalidField(
          absl::StrCat("token_ids[", i, "]"),
          absl::StrCat(
              "token id ", request.token_ids(i), " is not below the vocabulary size ", vocab_size));
    }
  }
  const std::vector<int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  response->set_text(model.tokenizer.tokenizer->Decode(ids, request.skip_special_tokens()));
  return absl::OkStatus();
}

}  // namespace baton::router
