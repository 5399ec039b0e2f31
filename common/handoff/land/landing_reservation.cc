#include "common/handoff/land/landing_reservation.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/engine/request.h"
#include "common/handoff/land/transfer_session.h"
#include "common/kv/manifest/layout.h"
#include "common/transport/transport.h"

namespace baton::handoff {

LandingReservation::LandingReservation(const engine::ReservationGrant& grant,
                                       const kv::v1::KvLayout& layout,
                                       const kv::WindowGeometry& geometry)
    : grant_(grant), layout_(layout), geometry_(geometry) {}

absl::StatusOr<std::vector<worker::v1::TransportEndpoint>> LandingReservation::RegisterWindows(
    const std::vector<transport::Transport*>& transports) {
  std::vector<worker::v1::TransportEndpoint> endpoints;
  absl::MutexLock lock(&mutex_);
  for (transport::Transport* transport : transports) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<transport::Window> window,
                           transport->Register(grant_.memory, *grant_.landing));
    worker::v1::TransportEndpoint& endpoint = endpoints.emplace_back();
    endpoint.set_transport(std::string(transport->name()));
    endpoint.set_connection_data(transport->connection_data());
    endpoint.set_window(window->descriptor());
    transport_names_.push_back(endpoint.transport());
    windows_.push_back(RegisteredWindow{transport, std::move(window)});
  }
  return endpoints;
}

bool LandingReservation::has_transport(std::string_view name) const {
  return std::find(transport_names_.begin(), transport_names_.end(), name) !=
         transport_names_.end();
}

absl::Status LandingReservation::CheckNewer(uint32_t attempt) const {
  if (!end_.ok()) {
    return end_;
  }
  if (attempt < newest_attempt_) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ",
                                                      attempt,
                                                      " of reservation ",
                                                      id(),
                                                      "; attempt ",
                                                      newest_attempt_,
                                                      " has begun already"));
  }
  if (attempt == newest_attempt_) {
    return absl::AlreadyExistsError(
        absl::StrCat("attempt ", attempt, " of reservation ", id(), " has begun already"));
  }
  return absl::OkStatus();
}

absl::Status LandingReservation::CheckAttempt(uint32_t attempt) {
  absl::MutexLock lock(&mutex_);
  return CheckNewer(attempt);
}

absl::Status LandingReservation::Adopt(const std::shared_ptr<TransferSession>& session,
                                       uint32_t attempt) {
  std::shared_ptr<TransferSession> older;
  {
    absl::MutexLock lock(&mutex_);
    BATON_RETURN_IF_ERROR(CheckNewer(attempt));
    newest_attempt_ = attempt;
    older = session_.lock();
    session_ = session;
  }
  if (older != nullptr) {
    older->Fail(absl::FailedPreconditionError("a newer attempt of the reservation has begun"));
  }
  // The older session has ended, so it announces nothing any more.
  absl::MutexLock lock(&mutex_);
  for (const RegisteredWindow& registered : windows_) {
    registered.window->CancelTransfers();
  }
  return absl::OkStatus();
}

absl::Status LandingReservation::Expect(std::string_view transport,
                                        uint64_t transfer_id,
                                        uint64_t tag,
                                        std::vector<transport::ReceiveRun> runs,
                                        transport::Checksum checksum) {
  absl::MutexLock lock(&mutex_);
  if (!end_.ok()) {
    return end_;
  }
  for (const RegisteredWindow& registered : windows_) {
    if (registered.transport->name() == transport) {
      return registered.transport->Expect(transport::ExpectParams{.window = registered.window.get(),
                                                                  .runs = std::move(runs),
                                                                  .transfer_id = transfer_id,
                                                                  .tag = tag,
                                                                  .checksum = checksum});
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("transport ", std::string(transport), " is not offered by this worker"));
}

absl::StatusOr<std::vector<int32_t>> LandingReservation::SentPages(std::string_view kv_state) {
  std::vector<int32_t> pages;
  if (grant_.sent_pages == nullptr) {
    if (!kv_state.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "commit: ", kv_state.size(), " bytes of state for a KV format that has none"));
    }
    pages.assign(static_cast<size_t>(geometry_.layers),
                 static_cast<int32_t>(geometry_.pages_per_layer));
  } else {
    absl::MutexLock lock(&mutex_);
    BATON_RETURN_IF_ERROR(end_);
    BATON_ASSIGN_OR_RETURN(pages, grant_.sent_pages(kv_state));
  }
  if (geometry_.hidden_pages > 0) {
    pages.push_back(static_cast<int32_t>(geometry_.hidden_pages));
  }
  return pages;
}

std::shared_ptr<TransferSession> LandingReservation::Close(const absl::Status& reason) {
  std::vector<RegisteredWindow> windows;
  std::shared_ptr<TransferSession> session;
  {
    absl::MutexLock lock(&mutex_);
    end_ = reason;
    windows.swap(windows_);
    session = session_.lock();
    session_.reset();
  }
  windows.clear();  // withdraws them, without the lock
  return session;
}

}  // namespace baton::handoff
