#pragma once
// Errors that show only later than parsing (a pattern that matches no parameter, a weight of a
// domain that the corpus lacks) are told at the place of their key too.

#include <functional>
#include <string>

#include "kernels/core/check.h"
#include "trainer/config/parse.h"

namespace k25::trainer {

/// The `message` of an error of `kind` behind the place of the key (or section) that it begins
/// with; of the key's element, when it quotes one. Other messages that name a key or section, or
/// begin with a path (of data.train's in errors of data, of train.init_from's in those of
/// checkpoints), get " (key: place)" at their end. A key with its default value has no place.
std::string with_place(const ParsedConfig& parsed, ErrorKind kind, const std::string& message);

/// Runs `body`; errors of usage, data and run directory leave it with their place. An AgreedError
/// stays one.
void with_places(const ParsedConfig& parsed, const std::function<void()>& body);

}  // namespace k25::trainer
