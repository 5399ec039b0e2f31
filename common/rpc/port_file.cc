#include "common/rpc/port_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <ios>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton::rpc {

absl::Status WritePortFile(const std::string& path, int grpc_port, int metrics_port) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary, std::ios::trunc);
  file << nlohmann::json{{"grpc", grpc_port}, {"metrics", metrics_port}}.dump() << '\n';
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::UnavailableError(
        absl::StrCat("port file: can't write ", path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

absl::Status RemovePortFile(const std::string& path) {
  if (path.empty() || std::remove(path.c_str()) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("port file: can't remove ", path, ": ", std::strerror(errno)));
}

}  // namespace baton::rpc
