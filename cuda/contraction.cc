#include "contraction.h"

#include <algorithm>
#include <utility>

namespace jax_gemm {
namespace {

// One or several joined labels. Strides in elements; 0 where the array lacks the label or repeats
// along it.
struct Dim {
  std::string labels;
  int64_t size;
  int64_t a, b, out;
};
using Dims = std::vector<Dim>;
using Stride = int64_t Dim::*;

// All labels of a contraction by what becomes of them.
struct Sorted {
  Dims m, n, k, batch;
};

struct Labels {
  std::string_view a, b, out;
};

Status refuse(const Contraction& c, const std::string& reason) {
  return {StatusCode::kInvalidArgument, "jax_gemm: contraction '" + std::string(c.spec) + "' of a " +
                                            shape_string(c.a_shape) + " and b " + shape_string(c.b_shape) +
                                            ": " + reason};
}

Status not_in_place(const Contraction& c, const std::string& reason) {
  return refuse(c, "cannot be read in place: " + reason);
}

std::string quoted(std::string_view labels) { return "'" + std::string(labels) + "'"; }

bool contains(std::string_view labels, char label) { return labels.find(label) != labels.npos; }

bool unique(std::string_view labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (contains(labels.substr(i + 1), labels[i])) return false;
  }
  return true;
}

Status check_operand(const Contraction& c, const char* name, std::string_view labels,
                     std::span<const int64_t> shape) {
  if (labels.size() != shape.size()) {
    return refuse(c, std::string("operand ") + name + " has " + std::to_string(shape.size()) +
                         " dimensions, the contraction gives it " + std::to_string(labels.size()));
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) {
    return refuse(c, std::string("operand ") + name + " has a negative size");
  }
  return {};
}

// Splits the specification and checks it against the ranks.
Status parse(const Contraction& c, Labels* labels) {
  const size_t comma = c.spec.find(','), arrow = c.spec.find("->");
  if (comma == c.spec.npos || arrow == c.spec.npos || comma > arrow) {
    return refuse(c, "the form is 'labels of a,labels of b->labels of out'");
  }
  *labels = {c.spec.substr(0, comma), c.spec.substr(comma + 1, arrow - comma - 1), c.spec.substr(arrow + 2)};
  if (!unique(labels->a) || !unique(labels->b) || !unique(labels->out)) {
    return refuse(c, "a label occurs twice in one array: diagonals are not products");
  }
  JAX_GEMM_RETURN_IF_ERROR(check_operand(c, "a", labels->a, c.a_shape));
  JAX_GEMM_RETURN_IF_ERROR(check_operand(c, "b", labels->b, c.b_shape));
  for (char label : labels->out) {
    if (!contains(labels->a, label) && !contains(labels->b, label)) {
      return refuse(c, "label " + quoted({&label, 1}) + " of out is in neither operand");
    }
  }
  for (char label : std::string(labels->a) + std::string(labels->b)) {
    if (!contains(labels->out, label) && !(contains(labels->a, label) && contains(labels->b, label))) {
      return refuse(c,
                    "label " + quoted({&label, 1}) + " is in one operand only and not in out: sum it first");
    }
  }
  return {};
}

// Size of `label` in an array, or -1.
int64_t size_in(std::string_view labels, std::span<const int64_t> shape, char label) {
  const size_t i = labels.find(label);
  return i == labels.npos ? -1 : shape[i];
}

// Row-major stride of `label`, 0 if the array lacks or repeats it. -1 if the array has 2^63
// elements or more. Sizes of 0 count as 1, so that the strides of what remains are still those of a
// dense array.
int64_t stride_in(std::string_view labels, std::span<const int64_t> shape, char label) {
  int64_t size = 1, stride = 0;
  for (size_t i = labels.size(); i-- > 0;) {
    if (labels[i] == label && shape[i] != 1) stride = size;
    if (__builtin_mul_overflow(size, std::max<int64_t>(shape[i], 1), &size)) return -1;
  }
  return stride;
}

Status merged_size(const Contraction& c, const Labels& labels, char label, int64_t* size) {
  const int64_t a = size_in(labels.a, c.a_shape, label), b = size_in(labels.b, c.b_shape, label);
  const bool may_repeat = contains(labels.out, label);
  if (a >= 0 && b >= 0 && a != b && !(may_repeat && (a == 1 || b == 1))) {
    return refuse(c, "label " + quoted({&label, 1}) + " has size " + std::to_string(a) + " in a and " +
                         std::to_string(b) + " in b");
  }
  *size = a < 0 || (a == 1 && b >= 0) ? b : a;
  return {};
}

// The dimensions other than those of size 1, each with its strides in the three arrays.
Status make_dims(const Contraction& c, const Labels& labels, Dims* dims) {
  std::vector<int64_t> out_shape;
  JAX_GEMM_RETURN_IF_ERROR(output_shape(c, &out_shape));
  std::string all(labels.a);
  for (char label : labels.b) {
    if (!contains(labels.a, label)) all.push_back(label);
  }
  for (char label : all) {
    Dim dim{std::string(1, label), 0, 0, 0, 0};
    JAX_GEMM_RETURN_IF_ERROR(merged_size(c, labels, label, &dim.size));
    dim.a = stride_in(labels.a, c.a_shape, label);
    dim.b = stride_in(labels.b, c.b_shape, label);
    dim.out = stride_in(labels.out, out_shape, label);
    if (dim.a < 0 || dim.b < 0 || dim.out < 0) return refuse(c, "an array has 2^63 elements or more");
    if (dim.size != 1) dims->push_back(std::move(dim));
  }
  return {};
}

// Strides tell the role: a batch label that an operand repeats is one that the operand lacks.
Sorted sort_dims(const Dims& dims) {
  Sorted sorted;
  for (const Dim& dim : dims) {
    (dim.out == 0 ? sorted.k : dim.b == 0 ? sorted.m : dim.a == 0 ? sorted.n : sorted.batch).push_back(dim);
  }
  return sorted;
}

// Orders dimensions from the outermost and joins neighbours that are one stride apart in all
// arrays.
Dims collapse(Dims dims, Stride order) {
  std::stable_sort(dims.begin(), dims.end(),
                   [order](const Dim& x, const Dim& y) { return x.*order > y.*order; });
  Dims joined;
  for (Dim& inner : dims) {
    Dim* outer = joined.empty() ? nullptr : &joined.back();
    if (outer && outer->a == inner.a * inner.size && outer->b == inner.b * inner.size &&
        outer->out == inner.out * inner.size) {
      *outer = {outer->labels + inner.labels, outer->size * inner.size, inner.a, inner.b, inner.out};
    } else {
      joined.push_back(std::move(inner));
    }
  }
  return joined;
}

bool any_contiguous(const Dims& dims, Stride stride) {
  return std::any_of(dims.begin(), dims.end(), [stride](const Dim& dim) { return dim.*stride == 1; });
}

// Kernels store rows of N. Exchanges the operands where out's contiguous axis is one of a's.
Status orient(const Contraction& c, Sorted* dims, bool* swapped) {
  const bool n_contiguous = dims->n.empty() || any_contiguous(dims->n, &Dim::out);
  const bool m_contiguous = dims->m.empty() || any_contiguous(dims->m, &Dim::out);
  const bool prefer_m = dims->n.empty() && any_contiguous(dims->m, &Dim::out);
  if (!n_contiguous && !m_contiguous) {
    return not_in_place(
        c, "out's contiguous label is a batch label, and both operands have labels of their own");
  }
  *swapped = !n_contiguous || prefer_m;
  if (!*swapped) return {};
  std::swap(dims->m, dims->n);
  for (Dims* group : {&dims->m, &dims->n, &dims->k, &dims->batch}) {
    for (Dim& dim : *group) std::swap(dim.a, dim.b);
  }
  return {};
}

// Takes the matrix axis out of a group of kept dimensions: the largest that has stride 1 in
// `contiguous`, or simply the largest where `contiguous` is null. Size 0 in the answer: there is
// none.
Dim take_axis(Dims* dims, Stride contiguous) {
  if (dims->empty()) return {"", 1, 0, 0, 0};
  auto best = dims->end();
  for (auto it = dims->begin(); it != dims->end(); ++it) {
    if (contiguous && (*it).*contiguous != 1) continue;
    if (best == dims->end() || it->size > best->size) best = it;
  }
  if (best == dims->end()) return {"", 0, 0, 0, 0};
  Dim axis = std::move(*best);
  dims->erase(best);
  return axis;
}

Status no_unit_stride(const Contraction& c, const char* name, const std::string& kept, const std::string& k) {
  return not_in_place(c, std::string("operand ") + name + " has stride 1 along neither its kept labels " +
                             quoted(kept) + " nor its contracted ones " + quoted(k) +
                             "; transpose it so that one of these comes last");
}

std::string all_labels(const Dims& dims) {
  std::string labels;
  for (const Dim& dim : dims) labels += dim.labels;
  return labels;
}

Operand make_operand(const void* data, const Dim& kept, const Dim& k, const Dims& batch, Stride stride) {
  Operand operand{};
  operand.data = data;
  operand.major = Major::kK;
  if (k.size == 0) return operand;  // nothing will be read
  // An axis of size 1 is contiguous whatever its stride; one that really is comes first, for its
  // alignment.
  const bool k_contiguous = k.size > 1 && k.*stride == 1;
  const bool kept_contiguous = kept.size > 1 && kept.*stride == 1;
  const bool k_major = k_contiguous || (!kept_contiguous && k.size == 1);
  const Dim& row = k_major ? k : kept;
  const Dim& column = k_major ? kept : k;
  operand.major = k_major ? Major::kK : Major::kMN;
  operand.ld = column.size > 1 ? column.*stride : row.size;
  for (size_t i = 0; i < batch.size(); ++i) operand.batch_stride[i] = batch[i].*stride;
  return operand;
}

GemmProblem assemble(const Contraction& c, bool swapped, const Dim& m, const Dim& n, const Dim& k,
                     const Dims& batch) {
  GemmProblem problem{};
  problem.math = c.math;
  problem.out_type = c.out_type;
  problem.m = m.size, problem.n = n.size, problem.k = k.size;
  problem.batch_rank = static_cast<int32_t>(batch.size());
  for (int i = 0; i < kMaxBatchDims; ++i) {
    problem.batch_dims[i] = i < problem.batch_rank ? batch[i].size : 1;
    problem.out_batch_stride[i] = i < problem.batch_rank ? batch[i].out : 0;
  }
  problem.a = make_operand(swapped ? c.b : c.a, m, k, batch, &Dim::a);
  problem.b = make_operand(swapped ? c.a : c.b, n, k, batch, &Dim::b);
  problem.out = c.out;
  problem.out_ld = m.size > 1 ? m.out : n.size;
  return problem;
}

int64_t product(const Dims& dims) {
  int64_t size = 1;
  for (const Dim& dim : dims) size *= dim.size;  // cannot overflow: stride_in() has checked each array
  return size;
}

// A problem with nothing to store: no layout matters.
GemmProblem empty_problem(const Contraction& c, const Sorted& dims) {
  const Dim m{"", product(dims.m), 0, 0, 0}, n{"", product(dims.n), 0, 0, 0}, k{"", 0, 0, 0, 0};
  GemmProblem problem = assemble(c, false, m, n, k, {{"", product(dims.batch), 0, 0, 0}});
  problem.k = product(dims.k);
  return problem;
}

// With K = 0 only out is touched: lets the operands' strides agree with out's.
void forget_operands(Sorted* dims) {
  dims->k = {{"", 0, 0, 0, 0}};
  for (Dims* group : {&dims->m, &dims->n, &dims->batch}) {
    for (Dim& dim : *group) {
      if (dim.a != 0) dim.a = dim.out;
      if (dim.b != 0) dim.b = dim.out;
    }
  }
}

}  // namespace

std::string shape_string(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Status output_shape(const Contraction& c, std::vector<int64_t>* shape) {
  Labels labels;
  JAX_GEMM_RETURN_IF_ERROR(parse(c, &labels));
  shape->clear();
  for (char label : labels.out) {
    JAX_GEMM_RETURN_IF_ERROR(merged_size(c, labels, label, &shape->emplace_back()));
  }
  return {};
}

Status make_problem(const Contraction& c, GemmProblem* problem, bool* swapped) {
  Labels labels;
  Dims all;
  JAX_GEMM_RETURN_IF_ERROR(parse(c, &labels));
  JAX_GEMM_RETURN_IF_ERROR(make_dims(c, labels, &all));

  Sorted dims = sort_dims(all);
  bool swap = false;
  if (swapped) *swapped = false;
  if (product(dims.m) == 0 || product(dims.n) == 0 || product(dims.batch) == 0) {
    *problem = empty_problem(c, dims);
    return {};
  }
  const bool no_terms = product(dims.k) == 0;
  if (no_terms) forget_operands(&dims);

  dims.k = collapse(dims.k, &Dim::a);
  if (dims.k.size() > 1) {
    return not_in_place(c, "the contracted labels " + quoted(all_labels(dims.k)) +
                               " do not lie one behind the other, in the same order, in both operands");
  }
  dims.m = collapse(dims.m, &Dim::out);
  dims.n = collapse(dims.n, &Dim::out);
  JAX_GEMM_RETURN_IF_ERROR(orient(c, &dims, &swap));

  const Dim k = dims.k.empty() ? Dim{"", 1, 0, 0, 0} : dims.k[0];
  const std::string m_labels = all_labels(dims.m), n_labels = all_labels(dims.n);
  const Dim m = take_axis(&dims.m, k.size <= 1 || k.a == 1 ? nullptr : &Dim::a);
  const Dim n = take_axis(&dims.n, &Dim::out);
  if (m.size == 0) return no_unit_stride(c, swap ? "b" : "a", m_labels, k.labels);
  if (n.size > 1 && n.b != 1 && k.size > 1 && k.b != 1) {
    return no_unit_stride(c, swap ? "a" : "b", n_labels, k.labels);
  }

  Dims batch = std::move(dims.batch);
  for (Dims* rest : {&dims.m, &dims.n}) batch.insert(batch.end(), rest->begin(), rest->end());
  batch = collapse(std::move(batch), &Dim::out);
  if (batch.size() > kMaxBatchDims) {
    return not_in_place(c, "it needs " + std::to_string(batch.size()) + " batch dimensions, more than the " +
                               std::to_string(kMaxBatchDims) + " that a kernel walks");
  }
  *problem = assemble(c, swap, m, n, k, batch);
  if (swapped) *swapped = swap;
  return {};
}

Status math_for(DType operands, std::string_view precision, Math* math) {
  if (precision != "default" && precision != "highest") {
    return {StatusCode::kInvalidArgument,
            "jax_gemm: precision is 'default' or 'highest', not '" + std::string(precision) + "'"};
  }
  *math = operands == DType::kBF16  ? Math::kBF16
          : operands == DType::kF16 ? Math::kF16
          : precision == "highest"  ? Math::kF32
                                    : Math::kTF32;
  return {};
}

}  // namespace jax_gemm
