#include "tests/support/local_stack.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace baton::testing {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

absl::Status WaitForPorts(Service& service, const std::string& port_file) {
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    if (!service.process->running()) {
      return absl::InternalError("the service ended while it started");
    }
    std::ifstream file(port_file);
    const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("grpc") && json.contains("metrics")) {
      service.grpc_port = json["grpc"].get<int>();
      service.metrics_port = json["metrics"].get<int>();
      return absl::OkStatus();
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::DeadlineExceededError("no port file " + port_file);
}

// Pools leave room for several workers, and a prompt is cut so small that something can happen to
// it while it is computed.
void PutOnGpu(const std::string& gpu, Service& service) {
  service.argv.insert(service.argv.begin(), {"/usr/bin/env", "CUDA_VISIBLE_DEVICES=" + gpu});
  service.argv.insert(service.argv.end(),
                      {"--device=cuda",
                       "--kv_pool_mib=512",
                       "--fp8_pool_mib=64",
                       "--diffkv_pool_mib=256",
                       "--shadowkv_pool_mib=256",
                       "--staging_mib=256",
                       "--prefill_chunk_tokens=16"});
}

std::string Tail(const std::string& path, size_t max_bytes) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  return all.size() > max_bytes ? all.substr(all.size() - max_bytes) : all;
}

}  // namespace

std::vector<std::string> TestGpus() {
  const char* const gpus = std::getenv("BATON_TEST_GPUS");
  if (gpus == nullptr) {
    return {};
  }
  std::vector<std::string> pair = absl::StrSplit(gpus, ',');
  pair.resize(2, pair.front());
  return pair;
}

std::string BinaryPath(const std::string& name) {
  const char* const folder = std::getenv("BATON_BINARIES");
  return absl::StrCat(folder != nullptr ? folder : BATON_BINARY_DIR "/bin", "/", name);
}

absl::StatusOr<std::unique_ptr<LocalStack>> LocalStack::Start(const LocalStackOptions& options) {
  auto stack = std::unique_ptr<LocalStack>(new LocalStack());
  std::string folder = std::filesystem::temp_directory_path() / "baton-test-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError("can't make a temporary folder");
  }
  stack->folder_ = folder;
  stack->tls_flags_ = options.tls_flags;
  const auto make = [&](const char* binary, const std::vector<std::string>& role_flags) {
    Service service;
    service.argv = {BinaryPath(binary), "--model=" + options.model};
    service.argv.insert(service.argv.end(), role_flags.begin(), role_flags.end());
    return service;
  };
  const std::vector<std::string> gpus = TestGpus();
  const auto make_worker =
      [&](const char* binary, const std::vector<std::string>& role_flags, size_t role) {
        Service service = make(binary, role_flags);
        if (!gpus.empty()) {
          PutOnGpu(gpus[role], service);
        }
        return service;
      };
  std::vector<std::string> prefill_flags = {"--threads=1"};
  prefill_flags.insert(
      prefill_flags.end(), options.worker_flags.begin(), options.worker_flags.end());
  std::vector<std::string> decode_flags = prefill_flags;
  prefill_flags.insert(
      prefill_flags.end(), options.prefill_flags.begin(), options.prefill_flags.end());
  decode_flags.insert(decode_flags.end(), options.decode_flags.begin(), options.decode_flags.end());
  // Names are keyed by address, so the vectors must not grow afterwards.
  stack->decode_.resize(static_cast<size_t>(options.decode_workers));
  stack->prefill_.resize(static_cast<size_t>(options.prefill_workers));
  std::vector<std::string> decode_addresses;
  std::vector<std::string> prefill_addresses;
  for (size_t i = 0; i < stack->decode_.size(); ++i) {
    stack->decode_[i] = make_worker("baton-decode", decode_flags, /*role=*/1);
    if (auto s = stack->Launch(stack->decode_[i], absl::StrCat("decode-", i)); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(s.message(), "\n", stack->LogTails()));
    }
    decode_addresses.push_back(stack->decode_[i].address());
  }
  for (size_t i = 0; i < stack->prefill_.size(); ++i) {
    stack->prefill_[i] = make_worker("baton-prefill", prefill_flags, /*role=*/0);
    if (auto s = stack->Launch(stack->prefill_[i], absl::StrCat("prefill-", i)); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(s.message(), "\n", stack->LogTails()));
    }
    prefill_addresses.push_back(stack->prefill_[i].address());
  }
  stack->router_ = make("baton-router", options.router_flags);
  if (!prefill_addresses.empty()) {
    stack->router_.argv.push_back("--prefill=" + absl::StrJoin(prefill_addresses, ","));
  }
  stack->router_.argv.push_back("--decode=" + absl::StrJoin(decode_addresses, ","));
  absl::Status status = stack->Launch(stack->router_, "router");
  if (status.ok()) {
    status = stack->WaitReady(kStartTimeout);
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(status.message(), "\n", stack->LogTails()));
  }
  return stack;
}

LocalStack::~LocalStack() {
  router_.process.reset();
  prefill_.clear();
  decode_.clear();
  std::error_code ignored;
  if (!folder_.empty() && std::getenv("BATON_KEEP_LOGS") == nullptr) {
    std::filesystem::remove_all(folder_, ignored);
  }
}

absl::Status LocalStack::Launch(Service& service, const std::string& name) {
  names_[&service] = name;
  const std::string port_file = folder_ + "/" + name + ".ports";
  std::filesystem::remove(port_file);
  std::vector<std::string> argv = service.argv;
  argv.insert(argv.end(), tls_flags_.begin(), tls_flags_.end());
  argv.push_back(absl::StrCat("--listen=127.0.0.1:", service.grpc_port));
  argv.push_back(absl::StrCat("--metrics_listen=127.0.0.1:", service.metrics_port));
  argv.push_back("--port_file=" + port_file);
  auto process = ChildProcess::Start(argv, folder_ + "/" + name + ".log");
  if (!process.ok()) {
    return process.status();
  }
  service.process = std::make_unique<ChildProcess>(*std::move(process));
  return WaitForPorts(service, port_file);
}

absl::Status LocalStack::Restart(Service& service) {
  service.process.reset();
  return Launch(service, names_.at(&service));
}

absl::Status LocalStack::WaitReady(absl::Duration timeout) {
  std::vector<std::string> argv = {BinaryPath("baton-client"),
                                   "health",
                                   "--router=" + router_address(),
                                   absl::StrCat("--wait=", absl::ToInt64Seconds(timeout))};
  argv.insert(argv.end(), tls_flags_.begin(), tls_flags_.end());
  auto wait = ChildProcess::Start(argv, folder_ + "/health.log");
  if (!wait.ok()) {
    return wait.status();
  }
  const absl::StatusOr<int> code = wait->Wait(timeout + absl::Seconds(10));
  if (!code.ok()) {
    return code.status();
  }
  return *code == 0 ? absl::OkStatus() : absl::UnavailableError("the router is not ready");
}

std::string LocalStack::LogTails() const {
  std::string text;
  for (const auto& [service, name] : names_) {
    absl::StrAppend(&text, "--- ", name, "\n", Tail(folder_ + "/" + name + ".log", 2000), "\n");
  }
  return text;
}

absl::StatusOr<std::map<std::string, double>> ScrapeMetrics(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return absl::UnavailableError(absl::StrCat("no metrics on port ", port));
  }
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  std::string response;
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(request.size())) {
    char buffer[65536];
    ssize_t count = 0;
    while ((count = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      response.append(buffer, static_cast<size_t>(count));
    }
  }
  close(fd);
  std::map<std::string, double> samples;
  std::istringstream lines(response.substr(std::min(response.find("\r\n\r\n"), response.size())));
  std::string line;
  while (std::getline(lines, line)) {
    const size_t space = line.rfind(' ');
    if (!line.empty() && line[0] != '#' && space != std::string::npos) {
      samples[line.substr(0, space)] = std::atof(line.c_str() + space + 1);
    }
  }
  return samples;
}

double Sample(const std::map<std::string, double>& samples,
              const std::string& name,
              const std::string& label) {
  double sum = -1;
  for (auto it = samples.lower_bound(name); it != samples.end() && it->first.starts_with(name);
       ++it) {
    const std::string rest = it->first.substr(name.size());
    if ((rest.empty() || rest[0] == '{') && rest.find(label) != std::string::npos) {
      sum = std::max(sum, 0.0) + it->second;
    }
  }
  return sum;
}

absl::Status WaitIdle(const Service& worker, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::string held;
  do {
    const auto samples = ScrapeMetrics(worker.metrics_port);
    if (samples.ok()) {
      const double running = Sample(*samples, "baton_requests_running");
      const double waiting = Sample(*samples, "baton_requests_waiting");
      const double leases = Sample(*samples, "baton_kv_leases_active");
      const double reserved = Sample(*samples, "baton_kv_reserved_pages");
      const double pages = Sample(*samples, "baton_kv_pages");
      const double free = Sample(*samples, "baton_kv_pages", "state=\"free\"");
      if (running == 0 && waiting == 0 && leases == 0 && reserved == 0 && free > 0 &&
          free == pages) {
        return absl::OkStatus();
      }
      held = absl::StrCat("running ",
                          running,
                          ", waiting ",
                          waiting,
                          ", leases ",
                          leases,
                          ", reserved pages ",
                          reserved,
                          ", free pages ",
                          free,
                          " of ",
                          pages);
    } else {
      held = std::string(samples.status().message());
    }
    absl::SleepFor(absl::Milliseconds(50));
  } while (absl::Now() < deadline);
  return absl::DeadlineExceededError("not idle: " + held);
}

}  // namespace baton::testing
