#include "common/transport/ipc/ipc_transport.h"

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/transport/ipc/connection_data.h"
#include "common/transport/ipc/progress.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"

namespace baton::transport {
namespace {

class Local final : public IpcTransport {
 public:
  explicit Local(const IpcTransportOptions& options)
      : IpcTransport(options.max_open_posts),
        options_(options),
        progress_(options, inbox(), windows(), OnSent()) {}
  ~Local() override { StopThread(); }
  absl::Status Bring();

  std::string connection_data() const override { return connection_data_; }
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;

 private:
  const IpcTransportOptions options_;
  std::string connection_data_;
  ipc::Progress progress_;
};

absl::Status Local::Bring() {
  BATON_RETURN_IF_ERROR(inbox()->Open());
  if (options_.listens) {
    BATON_ASSIGN_OR_RETURN(const ipc::ConnectionData data, ipc::ConnectionData::Make());
    BATON_RETURN_IF_ERROR(progress_.ListenAt(data.socket));
    connection_data_ = data.ToString();
  }
  StartThread(progress_);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Connection>> Local::Connect(std::string_view connection_data) {
  BATON_ASSIGN_OR_RETURN(const ipc::ConnectionData data,
                         ipc::ConnectionData::Parse(connection_data));
  return AwaitConnect(connection_data,
                      [this, socket = data.socket](const std::shared_ptr<ConnectCall>& call) {
                        progress_.Connect(call, socket);
                      });
}

}  // namespace

absl::StatusOr<std::unique_ptr<IpcTransport>> IpcTransport::Make(
    const IpcTransportOptions& options) {
  auto transport = std::make_unique<Local>(options);
  BATON_RETURN_IF_ERROR(transport->Bring());
  return transport;
}

}  // namespace baton::transport
