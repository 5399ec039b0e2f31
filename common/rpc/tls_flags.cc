#include "common/rpc/tls_flags.h"

#include <string>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, tls_cert, "", "PEM file with this process's certificate chain");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the private key of --tls_cert");
ABSL_FLAG(std::string,
          tls_ca,
          "",
          "PEM file with the roots that peers must lead to; on a listener it makes TLS mutual");
ABSL_FLAG(std::string,
          tls_server_name,
          "",
          "name that a dialled peer's certificate must carry; empty: the host dialled");

namespace baton::rpc {

TlsOptions TlsOptionsFromFlags() {
  return {.cert = absl::GetFlag(FLAGS_tls_cert),
          .key = absl::GetFlag(FLAGS_tls_key),
          .ca = absl::GetFlag(FLAGS_tls_ca),
          .server_name = absl::GetFlag(FLAGS_tls_server_name)};
}

}  // namespace baton::rpc
