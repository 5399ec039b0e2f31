#include "common/http/page_server.h"

#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/http/deadline_stream.h"

namespace baton::http {
namespace {

// Requests have no body; what a GET may carry along is read and dropped.
constexpr size_t kMaxBodyBytes = 1024;

// A thread for each connection that may be open. When all are, the thread that accepts waits.
class ConnectionThreads final : public httplib::ThreadPool {
 public:
  explicit ConnectionThreads(size_t connections) : ThreadPool(connections), free_(connections) {}

  void enqueue(std::function<void()> serve) override {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(+[](size_t* free) { return *free > 0; }, &free_));
      --free_;
    }
    ThreadPool::enqueue([this, serve = std::move(serve)] {
      serve();
      absl::MutexLock lock(&mutex_);
      ++free_;
    });
  }

 private:
  absl::Mutex mutex_;
  size_t free_ ABSL_GUARDED_BY(mutex_);
};

// The library would let a second process listen on the same port and share its connections.
void SetSocketOptions(socket_t socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

// Of the encodings that the library knows, brotli costs more than a page is worth. Ranges it would
// answer with a copy of the page for each, of which a header may name thousands.
void SimplifyRequest(httplib::Request& request) {
  request.ranges.clear();
  const bool gzip = request.get_header_value("Accept-Encoding").find("gzip") != std::string::npos;
  request.headers.erase("Accept-Encoding");
  if (gzip) {
    request.headers.emplace("Accept-Encoding", "gzip");
  }
}

}  // namespace

class PageServer::Listener final : public httplib::Server {
 public:
  explicit Listener(PageServerOptions options) : options_(std::move(options)) {
    new_task_queue = [this] { return new ConnectionThreads(options_.max_connections); };
    set_socket_options(SetSocketOptions);
    set_payload_max_length(kMaxBodyBytes);
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
      return HandlerResponse::Handled;
    });
    set_exception_handler([](const httplib::Request&,
                             httplib::Response& response,
                             const std::exception_ptr&) { response.status = 500; });
  }

  ~Listener() override {
    stop_ = true;
    stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The port in use; -1: it can't listen there.
  int Bind(const config::HostPort& address) {
    if (address.port == 0) {
      return bind_to_any_port(address.host);
    }
    return bind_to_port(address.host, address.port) ? address.port : -1;
  }

  void Serve() {
    thread_ = std::thread([this] { listen_after_bind(); });
    while (!is_running()) {  // before this, stop() does nothing
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  // In place of the library's: one request, and one deadline for all of it.
  bool process_and_close_socket(socket_t socket) override {
    DeadlineStream stream(socket, absl::Now() + options_.connection_timeout, stop_);
    bool closed = false;
    const bool answered =
        process_request(stream, /*close_connection=*/true, closed, SimplifyRequest);
    shutdown(socket, SHUT_RDWR);
    close(socket);
    return answered;
  }

  void Answer(const httplib::Request& request, httplib::Response& response) const {
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Cache-Control", "no-store");
    if (request.method != "GET" && request.method != "HEAD") {
      response.status = 405;
      response.set_header("Allow", "GET, HEAD");
      return;
    }
    for (const Page& page : options_.pages) {
      if (page.path == request.path) {
        for (const auto& [name, value] : page.headers) {
          response.set_header(name, value);
        }
        response.set_content(page.text(), page.content_type);
        response.status = 200;
        return;
      }
    }
    response.status = 404;
  }

  const PageServerOptions options_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(PageServerOptions options) {
  BATON_ASSIGN_OR_RETURN(const config::HostPort address,
                         config::ParseHostPort(options.listen, /*allow_port_zero=*/true));
  auto listener = std::make_unique<Listener>(std::move(options));
  const int port = listener->Bind(address);
  if (port < 0) {
    return absl::UnavailableError(
        absl::StrCat("can't listen on ", address.ToString(), "; choose another host:port"));
  }
  listener->Serve();
  return std::unique_ptr<PageServer>(new PageServer(std::move(listener), port));
}

PageServer::PageServer(std::unique_ptr<Listener> listener, int port)
    : listener_(std::move(listener)), port_(port) {}

PageServer::~PageServer() = default;

}  // namespace baton::http
