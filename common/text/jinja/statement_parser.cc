#include <initializer_list>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/parser.h"

namespace baton::text::jinja {
namespace {

class StatementParser {
 public:
  explicit StatementParser(const std::vector<Token>& tokens)
      : cursor_(tokens), expressions_(&cursor_) {}

  absl::StatusOr<std::vector<Statement>> Run() {
    BATON_ASSIGN_OR_RETURN(std::vector<Statement> body, ParseUntil({}));
    if (cursor_.Current().kind != TokenKind::kEnd) return cursor_.Error("unexpected tag");
    return body;
  }

 private:
  using Body = std::vector<Statement>;

  // Statements up to, not including, a block tag named in `ends`; an empty list means the end of
  // the template.
  absl::StatusOr<Body> ParseUntil(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kMaxStatementDepth) return cursor_.Error("statements nested too deeply");
    const absl::Cleanup leave = [this] { --depth_; };
    Body body;
    while (true) {
      const Token& token = cursor_.Current();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return body;
        return cursor_.Error(Concat("the template ends before {% ", *(ends.end() - 1), " %}"));
      }
      if (token.kind == TokenKind::kBlockBegin) {
        for (const std::string_view end : ends) {
          if (cursor_.Next().kind == TokenKind::kName && cursor_.Next().text == end) return body;
        }
      }
      BATON_ASSIGN_OR_RETURN(Statement statement, ParseStatement());
      body.push_back(std::move(statement));
    }
  }

  // Past "{% name %}", where the cursor stands at the block begin.
  absl::Status ExpectEndTag(std::string_view name) {
    cursor_.Advance();
    if (!cursor_.SkipName(name)) return cursor_.Error(Concat("expected {% ", name, " %}"));
    return absl::OkStatus();
  }

  Statement New(StatementKind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = cursor_.Current().line;
    return statement;
  }

  absl::StatusOr<Statement> ParseStatement() {
    if (cursor_.Current().kind == TokenKind::kText) {
      Statement statement = New(StatementKind::kText);
      statement.text = cursor_.Current().text;
      cursor_.Advance();
      return statement;
    }
    if (cursor_.Current().kind == TokenKind::kOutputBegin) {
      Statement statement = New(StatementKind::kOutput);
      cursor_.Advance();
      BATON_ASSIGN_OR_RETURN(statement.expression,
                             expressions_.ParseTuple(/*with_conditional=*/true));
      if (cursor_.Current().kind != TokenKind::kOutputEnd) {
        return cursor_.Error(Concat("expected '}}', found '", cursor_.Current().text, "'"));
      }
      cursor_.Advance();
      return statement;
    }
    cursor_.Advance();  // the block begin
    return ParseBlock();
  }

  absl::StatusOr<Statement> ParseBlock() {
    BATON_ASSIGN_OR_RETURN(const std::string name, cursor_.ExpectName());
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "generation") return ParseGeneration();
    if (name == "break" || name == "continue") return ParseLoopControl(name);
    return cursor_.Error(Concat("the tag {% ", name, " %} is not supported"));
  }

  absl::StatusOr<Statement> ParseIf() {
    Statement statement = New(StatementKind::kIf);
    bool more = true;
    while (more) {
      Branch branch;
      BATON_ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(/*with_conditional=*/false));
      BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
      BATON_ASSIGN_OR_RETURN(branch.body, ParseUntil({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      cursor_.Advance();
      more = cursor_.SkipName("elif");
    }
    if (cursor_.SkipName("else")) {
      BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
      Branch branch;
      BATON_ASSIGN_OR_RETURN(branch.body, ParseUntil({"endif"}));
      statement.branches.push_back(std::move(branch));
      cursor_.Advance();
    }
    if (!cursor_.SkipName("endif")) return cursor_.Error("expected {% endif %}");
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  // One name, or several in parentheses or not.
  absl::StatusOr<std::vector<std::string>> ParseTargets() {
    const bool parentheses = cursor_.SkipOperator("(");
    std::vector<std::string> names;
    do {
      BATON_ASSIGN_OR_RETURN(std::string name, cursor_.ExpectName());
      names.push_back(std::move(name));
    } while (cursor_.SkipOperator(","));
    if (parentheses) BATON_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
    return names;
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = New(StatementKind::kFor);
    BATON_ASSIGN_OR_RETURN(statement.targets, ParseTargets());
    if (!cursor_.SkipName("in")) return cursor_.Error("expected 'in'");
    BATON_ASSIGN_OR_RETURN(statement.expression,
                           expressions_.ParseTuple(/*with_conditional=*/false));
    if (cursor_.SkipName("if")) {
      BATON_ASSIGN_OR_RETURN(statement.condition, expressions_.ParseExpression());
    }
    if (cursor_.AtName("recursive")) return cursor_.Error("recursive loops are not supported");
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    ++loops_;
    absl::StatusOr<Body> body = ParseUntil({"else", "endfor"});
    --loops_;
    BATON_RETURN_IF_ERROR(body.status());
    statement.body = *std::move(body);
    cursor_.Advance();
    if (cursor_.SkipName("else")) {
      BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
      BATON_ASSIGN_OR_RETURN(statement.else_body, ParseUntil({"endfor"}));
      cursor_.Advance();
    }
    if (!cursor_.SkipName("endfor")) return cursor_.Error("expected {% endfor %}");
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  absl::StatusOr<Statement> ParseSet() {
    Statement statement = New(StatementKind::kSet);
    BATON_ASSIGN_OR_RETURN(statement.targets, ParseTargets());
    if (statement.targets.size() == 1 && cursor_.SkipOperator(".")) {
      BATON_ASSIGN_OR_RETURN(statement.attribute, cursor_.ExpectName());
    }
    if (cursor_.SkipOperator("=")) {
      BATON_ASSIGN_OR_RETURN(statement.expression,
                             expressions_.ParseTuple(/*with_conditional=*/true));
      BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
      return statement;
    }
    statement.kind = StatementKind::kSetBlock;
    if (statement.targets.size() != 1) return cursor_.Error("a block set takes one name");
    if (cursor_.AtOperator("|")) return cursor_.Error("filters on a block set are not supported");
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    BATON_ASSIGN_OR_RETURN(statement.body, ParseUntil({"endset"}));
    BATON_RETURN_IF_ERROR(ExpectEndTag("endset"));
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = New(StatementKind::kMacro);
    BATON_ASSIGN_OR_RETURN(statement.text, cursor_.ExpectName());
    BATON_RETURN_IF_ERROR(cursor_.ExpectOperator("("));
    while (!cursor_.AtOperator(")")) {
      BATON_ASSIGN_OR_RETURN(std::string name, cursor_.ExpectName());
      ExpressionPtr fallback;
      if (cursor_.SkipOperator("=")) {
        BATON_ASSIGN_OR_RETURN(fallback, expressions_.ParseExpression());
      }
      statement.parameters.emplace_back(std::move(name), std::move(fallback));
      if (!cursor_.SkipOperator(",")) break;
    }
    BATON_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    const int outer_loops = std::exchange(loops_, 0);
    absl::StatusOr<Body> body = ParseUntil({"endmacro"});
    loops_ = outer_loops;
    BATON_RETURN_IF_ERROR(body.status());
    statement.body = *std::move(body);
    BATON_RETURN_IF_ERROR(ExpectEndTag("endmacro"));
    cursor_.SkipName(statement.text);
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  // {% generation %} marks what the assistant wrote, for training; it does not change the text.
  absl::StatusOr<Statement> ParseGeneration() {
    Statement statement = New(StatementKind::kGroup);
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    BATON_ASSIGN_OR_RETURN(statement.body, ParseUntil({"endgeneration"}));
    BATON_RETURN_IF_ERROR(ExpectEndTag("endgeneration"));
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  absl::StatusOr<Statement> ParseLoopControl(std::string_view name) {
    if (loops_ == 0) return cursor_.Error(Concat("{% ", name, " %} outside a loop"));
    Statement statement = New(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
    BATON_RETURN_IF_ERROR(cursor_.ExpectBlockEnd());
    return statement;
  }

  TokenCursor cursor_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;  // open for loops of the current macro or template
};

}  // namespace

absl::StatusOr<std::vector<Statement>> ParseTemplate(const std::vector<Token>& tokens) {
  return StatementParser(tokens).Run();
}

}  // namespace baton::text::jinja
