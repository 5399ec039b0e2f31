// What all reports look like.
#pragma once

#include <string>

namespace baton::loadtest {

// A whole page with `title` (text) as its heading and `body` (HTML) below; light or dark as the
// reader's browser asks for. It needs nothing else: styles are in it, nothing is loaded, no script
// runs.
std::string Page(const std::string& title, const std::string& body);

}  // namespace baton::loadtest
