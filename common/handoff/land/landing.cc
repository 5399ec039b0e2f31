#include "common/handoff/land/landing.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing_core.h"
#include "common/handoff/land/landing_reservation.h"
#include "common/handoff/land/landing_session.h"
#include "common/handoff/land/transfer_session.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/reason.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

// Our own grant against our own layout: a mistake of this worker, not of a peer.
absl::Status CheckGrant(const engine::ReservationGrant& grant, const kv::WindowGeometry& geometry) {
  const auto bytes = static_cast<int64_t>(BytesOf(grant.memory));
  if (bytes != geometry.window_bytes()) {
    return absl::InternalError(absl::StrCat("the grant of ",
                                            bytes,
                                            " bytes does not fit the layout: ",
                                            geometry.layers,
                                            " layers of ",
                                            geometry.pages_per_layer,
                                            " pages of ",
                                            geometry.page_bytes,
                                            " bytes, ",
                                            geometry.hidden_pages,
                                            " pages of hidden states"));
  }
  return absl::OkStatus();
}

}  // namespace

Landing::Landing(std::vector<transport::Transport*> transports,
                 kv::v1::KvLayout layout,
                 LandingOptions options)
    : core_(std::make_shared<LandingCore>(std::move(transports), options)),
      layout_(std::move(layout)) {
  core_->StartThreads();
}

Landing::~Landing() { core_->Stop(); }

void Landing::set_engine(engine::Engine* engine) { core_->set_engine(engine); }

absl::StatusOr<worker::v1::HandshakeResponse> Landing::Handshake(
    const worker::v1::HandshakeRequest& request) const {
  BATON_RETURN_IF_ERROR(kv::CheckLayout(layout_, request.layout()));
  if (request.segment_header_version() != kv::SegmentHeader::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("segment header version ",
                                                      request.segment_header_version(),
                                                      "; this worker knows version ",
                                                      kv::SegmentHeader::kVersion));
  }
  BATON_RETURN_IF_ERROR(
      kv::CheckRanks(layout_.kv_heads(), std::max(request.kv_ranks(), 1u), kv::kWorkerRanks));
  worker::v1::HandshakeResponse response;
  response.set_kv_ranks(kv::kWorkerRanks);
  *response.mutable_layout() = layout_;
  response.set_segment_header_version(kv::SegmentHeader::kVersion);
  for (const transport::Transport* transport : core_->transports()) {
    const auto& wanted = request.transports();
    if (std::find(wanted.begin(), wanted.end(), transport->name()) == wanted.end()) {
      continue;
    }
    response.add_transports(std::string(transport->name()));
    worker::v1::TransportEndpoint& endpoint = *response.add_endpoints();
    endpoint.set_transport(std::string(transport->name()));
    endpoint.set_connection_data(transport->connection_data());
  }
  if (response.transports().empty()) {
    return absl::FailedPreconditionError("the two workers have no transport in common");
  }
  return response;
}

absl::StatusOr<std::vector<worker::v1::TransportEndpoint>> Landing::Open(
    const engine::ReservationGrant& grant, const kv::v1::KvLayout& layout) {
  BATON_ASSIGN_OR_RETURN(
      const kv::WindowGeometry geometry,
      kv::MakeWindowGeometry(layout,
                             grant.prompt_tokens,
                             {.per_layer = grant.pages_per_layer, .hidden = grant.hidden_pages}));
  BATON_RETURN_IF_ERROR(CheckGrant(grant, geometry));
  auto reservation = std::make_shared<LandingReservation>(grant, layout, geometry);
  BATON_ASSIGN_OR_RETURN(std::vector<worker::v1::TransportEndpoint> endpoints,
                         reservation->RegisterWindows(core_->transports()));
  BATON_RETURN_IF_ERROR(core_->Add(std::move(reservation)));
  return endpoints;
}

void Landing::OnReservationReleased(uint64_t reservation_id) {
  const std::shared_ptr<LandingReservation> reservation = core_->Forget(reservation_id);
  if (reservation == nullptr) {
    return;
  }
  const absl::Status reason = kv::FailedPreconditionWithReason(
      kv::kStaleEpoch, absl::StrCat("reservation ", reservation_id, " has ended"));
  if (const auto session = reservation->Close(reason); session != nullptr) {
    session->Fail(reason);
  }
}

std::shared_ptr<LandingSession> Landing::StartSession(std::shared_ptr<LandingResponder> responder) {
  return std::make_shared<TransferSession>(core_, std::move(responder));
}

int64_t Landing::open_reservations() const { return core_->reservations(); }

}  // namespace baton::handoff
