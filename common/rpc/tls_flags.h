// --tls_cert, --tls_key, --tls_ca and --tls_server_name, the same in every binary.
#pragma once

#include "common/rpc/tls.h"

namespace baton::rpc {

// What the flags say. Call after the command line has been parsed.
TlsOptions TlsOptionsFromFlags();

}  // namespace baton::rpc
