#include "kernels/sequences/sequences.h"

#include <string>

#include "kernels/core/operand.h"

namespace k25::kernels {
namespace {

void check_border_values(std::string_view op, const SequenceShape& s, const std::int32_t* border) {
  for (std::int64_t i = 0; i <= s.sequences; ++i) {
    const bool falls = i > 0 && border[i] < border[i - 1];
    const bool wrong_end =
        (i == 0 && border[i] != 0) || (i == s.sequences && border[i] != s.tokens);
    if (!falls && !wrong_end) continue;
    fail(ErrorKind::kUsage,
         std::string(op) + ": border " + std::to_string(i) + " is " + std::to_string(border[i]) +
             "; borders rise from 0 to the row's " + std::to_string(s.tokens) + " tokens" +
             (falls ? ", the one before is " + std::to_string(border[i - 1]) : std::string()));
  }
}

void check_document_values(std::string_view op, const SequenceShape& s,
                           const SequenceBorders& borders) {
  const ConstTensor& doc_begin = borders.doc_begin_BT;
  const ConstTensor& doc_end = borders.doc_end_BT;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int32_t* const begins = doc_begin.data<std::int32_t>() + b * doc_begin.stride(0);
    const std::int32_t* const ends = doc_end.data<std::int32_t>() + b * doc_end.stride(0);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const bool inside = begins[t] >= 0 && begins[t] <= t && ends[t] > t && ends[t] <= s.tokens;
      const bool continues = t > 0 && ends[t - 1] > t;
      const bool agrees =
          continues ? begins[t] == begins[t - 1] && ends[t] == ends[t - 1] : begins[t] == t;
      if (inside && agrees) continue;
      fail(ErrorKind::kUsage,
           std::string(op) + ": row " + std::to_string(b) + ", token " + std::to_string(t) +
               ": document [" + std::to_string(begins[t]) + ", " + std::to_string(ends[t]) +
               (inside ? ") disagrees with that of the token before; all tokens of a document "
                         "carry the same begin and end"
                       : ") does not hold its token or leaves the row of " +
                             std::to_string(s.tokens) + " tokens"));
    }
  }
}

}  // namespace

void check_sequence_shape(std::string_view op, const SequenceShape& s) {
  const std::string name(op);
  K25_CHECK(s.batch >= 0 && s.tokens >= 0, name + ": batch " + std::to_string(s.batch) +
                                               " and tokens " + std::to_string(s.tokens) +
                                               " must not be negative");
  K25_CHECK(s.tokens <= INT32_MAX, name + ": at most 2^31 - 1 tokens a row");
  K25_CHECK(s.sequences >= 0 && (s.sequences == 0 || s.batch == 1),
            name + ": " + std::to_string(s.sequences) + " packed sequences in a batch of " +
                std::to_string(s.batch) + "; they lie in one row (batch 1)");
}

void check_sequence_borders(std::string_view op, const SequenceShape& s, const SequenceBorders& b,
                            Device device) {
  const bool any_documents = b.doc_begin_BT || b.doc_end_BT;
  if (s.sequences > 0) {
    check_operand(op, "border_S1", b.border_S1, DType::kInt32, {s.sequences + 1},
                  Density::kContiguous, device);
    if (any_documents) {
      operand_error(op, "border_S1", "cuts the row already; leave doc_begin and doc_end out");
    }
    if (device == Device::kCpu) check_border_values(op, s, b.border_S1.data<std::int32_t>());
    return;
  }
  if (b.border_S1) operand_error(op, "border_S1", "needs desc.sequences, which is 0");
  if (!any_documents) return;
  if (!b.doc_begin_BT || !b.doc_end_BT) {
    operand_error(op, "doc_begin", "and doc_end come together or not at all");
  }
  check_operand(op, "doc_begin_BT", b.doc_begin_BT, DType::kInt32, {s.batch, s.tokens},
                Density::kRows, device);
  check_operand(op, "doc_end_BT", b.doc_end_BT, DType::kInt32, {s.batch, s.tokens}, Density::kRows,
                device);
  if (s.batch * s.tokens > 0 && device == Device::kCpu) check_document_values(op, s, b);
}

}  // namespace k25::kernels
