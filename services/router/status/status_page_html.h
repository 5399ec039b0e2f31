// The status page, from status_page.html.
#pragma once

namespace baton::router {

// "NONCE" stands where the attribute of script and style goes.
extern const char kStatusPageHtml[];

}  // namespace baton::router
