#include "services/prefill/operations/identity.h"

#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace baton::prefill::operations {

std::string IdentityOf(const worker::v1::PrefillRequest& request) {
  worker::v1::PrefillRequest identity;
  identity.set_prompt_token_ids(request.prompt_token_ids());
  *identity.mutable_sampling() = request.sampling();
  identity.set_kv_policy(request.kv_policy());
  // Maps, as of logit biases, have no order of their own.
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    identity.SerializeToCodedStream(&coded);
  }
  return bytes;
}

}  // namespace baton::prefill::operations
