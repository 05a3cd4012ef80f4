#pragma once
// Errors that show only later than parsing (a pattern that matches no parameter, a weight of a
// domain that the corpus lacks) are told at the place of their key too.

#include <functional>
#include <string>

#include "trainer/config/parse.h"

namespace k25::trainer {

/// `message` behind the place of the key (or section) that it begins with; of the key's element,
/// when it quotes one. Other messages that name a key, or begin with the path that
/// data.train or train.init_from gives, get " (key: place)" at their end. A key with its default
/// value has no place.
std::string with_place(const ParsedConfig& parsed, const std::string& message);

/// Runs `body`; errors of usage, data and run directory leave it with their place. An AgreedError
/// stays one.
void with_places(const ParsedConfig& parsed, const std::function<void()>& body);

}  // namespace k25::trainer
