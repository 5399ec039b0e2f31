// What says that retained KV is that of a request.
#pragma once

#include <string>

#include "proto/baton/worker/v1/prefill.pb.h"

namespace baton::prefill::operations {

// The fields that KV and first tokens depend on, besides this worker, byte for byte: prompt,
// sampling and KV policy.
std::string IdentityOf(const worker::v1::PrefillRequest& request);

}  // namespace baton::prefill::operations
