#include "common/rpc/tls.h"

#include <cstdint>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::rpc {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxPemBytes + 1, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && !file.eof()) {
    return absl::NotFoundError(absl::StrCat("--", flag, ": can't read ", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxPemBytes || text.find("-----BEGIN") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": ", path, " is no PEM file of at most 1 MiB"));
  }
  return text;
}

absl::Status CheckPair(const TlsOptions& options) {
  if (options.cert.empty() != options.key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key must be given together");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) {
    return grpc::InsecureServerCredentials();
  }
  BATON_RETURN_IF_ERROR(CheckPair(options));
  if (options.cert.empty()) {
    return absl::InvalidArgumentError("a TLS listener needs --tls_cert and --tls_key");
  }
  grpc::SslServerCredentialsOptions ssl(
      options.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                         : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  BATON_ASSIGN_OR_RETURN(std::string key, ReadPem(options.key, "tls_key"));
  BATON_ASSIGN_OR_RETURN(std::string cert, ReadPem(options.cert, "tls_cert"));
  ssl.pem_key_cert_pairs.push_back({std::move(key), std::move(cert)});
  if (!options.ca.empty()) {
    BATON_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.ca, "tls_ca"));
  }
  return grpc::SslServerCredentials(ssl);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) {
    return grpc::InsecureChannelCredentials();
  }
  BATON_RETURN_IF_ERROR(CheckPair(options));
  if (options.ca.empty()) {
    return absl::InvalidArgumentError("a TLS channel needs --tls_ca to verify the peer");
  }
  grpc::SslCredentialsOptions ssl;
  BATON_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.ca, "tls_ca"));
  if (!options.cert.empty()) {
    BATON_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.key, "tls_key"));
    BATON_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem(options.cert, "tls_cert"));
  }
  return grpc::SslCredentials(ssl);
}

}  // namespace baton::rpc
