#include "common/text/jinja/template.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/parser.h"
#include "common/text/utf8.h"

namespace baton::text::jinja {

struct Template::Body {
  std::vector<Statement> statements;
};

Template::Template(std::unique_ptr<const Body> body) : body_(std::move(body)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

absl::StatusOr<Template> Template::Compile(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(Concat(
        "chat template of ", source.size(), " bytes is over the limit of ", kMaxTemplateBytes));
  }
  const size_t invalid = FindInvalidUtf8(source);
  if (invalid != std::string_view::npos) {
    return absl::InvalidArgumentError(Concat("chat template is not valid UTF-8 at byte ", invalid));
  }
  const absl::StatusOr<std::vector<Token>> tokens = Lex(source);
  if (!tokens.ok()) return WithContext(tokens.status(), "chat template");
  absl::StatusOr<std::vector<Statement>> statements = ParseTemplate(*tokens);
  if (!statements.ok()) return WithContext(statements.status(), "chat template");
  return Template(std::make_unique<const Body>(Body{*std::move(statements)}));
}

absl::StatusOr<std::string> Template::Render(const Dict& context, absl::Time now) const {
  Evaluator evaluator(context, now);
  return evaluator.Render(body_->statements);
}

}  // namespace baton::text::jinja
