#include "common/transport/ipc/connection_data.h"

#include <sys/random.h>

#include <array>
#include <cctype>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::transport::ipc {
namespace {

constexpr size_t kMaxBytes = 128;
constexpr char kPrefix[] = "baton-";

absl::StatusOr<std::string> ThisMachine() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!(file >> id) || id.empty()) {
    return absl::UnavailableError(
        "the kernel's boot id can't be read, by which workers of one machine know each other: is "
        "/proc mounted?");
  }
  return id;
}

}  // namespace

std::string ConnectionData::ToString() const { return absl::StrCat(machine, "/", socket); }

absl::StatusOr<ConnectionData> ConnectionData::Make() {
  std::array<char, 16> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return absl::InternalError("the system gave no random bytes for the name of a socket");
  }
  ConnectionData data;
  BATON_ASSIGN_OR_RETURN(data.machine, ThisMachine());
  data.socket =
      absl::StrCat(kPrefix, absl::BytesToHexString(std::string(random.data(), random.size())));
  return data;
}

absl::StatusOr<ConnectionData> ConnectionData::Parse(std::string_view text) {
  const size_t slash = text.find('/');
  if (text.size() > kMaxBytes || slash == std::string_view::npos ||
      !text.substr(slash + 1).starts_with(kPrefix)) {
    return absl::InvalidArgumentError("connection data of ipc are not \"machine/socket\"");
  }
  BATON_ASSIGN_OR_RETURN(const std::string here, ThisMachine());
  ConnectionData data = {.machine = std::string(text.substr(0, slash)),
                         .socket = std::string(text.substr(slash + 1))};
  if (data.machine != here) {
    return absl::UnavailableError("the peer is on another machine");
  }
  return data;
}

}  // namespace baton::transport::ipc
