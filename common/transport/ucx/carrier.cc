#include "common/transport/ucx/carrier.h"

#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton::transport::ucx {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// "tcp" of "#   lane[0]:  2:tcp/lo.0 md[1] -> ... rma_bw#0 am am_bw#0"; empty when it is no lane.
std::string_view TransportOf(std::string_view line) {
  const size_t lane = line.find("lane[");
  const size_t name = lane == std::string_view::npos ? lane : line.find("]:", lane);
  if (name == std::string_view::npos) {
    return {};
  }
  const size_t begin = line.find(':', name + 2);
  const size_t end = begin == std::string_view::npos ? begin : line.find('/', begin);
  return end == std::string_view::npos ? std::string_view()
                                       : line.substr(begin + 1, end - begin - 1);
}

}  // namespace

std::string CarrierOf(std::string_view endpoint_info) {
  // Puts go by the lane for bulk puts; without one by that for puts, else they are emulated by
  // active messages.
  for (const char* purpose : {" rma_bw#0", " rma#0", " am"}) {
    for (const absl::string_view line : absl::StrSplit(View(endpoint_info), '\n')) {
      const std::string_view transport = TransportOf({line.data(), line.size()});
      if (!transport.empty() && absl::StrContains(line, purpose)) {
        return absl::StrCat("ucx/", View(transport));
      }
    }
  }
  return "ucx/unknown";
}

bool IsRdma(std::string_view carrier) {
  return absl::StartsWith(View(carrier), "ucx/rc_") || absl::StartsWith(View(carrier), "ucx/dc_");
}

}  // namespace baton::transport::ucx
