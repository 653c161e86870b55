// SPDX-License-Identifier: MIT
// A few pages of text for a model that learns to spell.
#pragma once

#include <string_view>

namespace test {

inline constexpr std::string_view prose =
    R"(before the sun is up the yard is already awake. the first engine of the morning stands under the lamps and waits for
its wagons, and the men who will sort them walk along the line with a list in one hand and a lantern in the other. every
wagon has a number, and every number has a place where it must be before the night. some carry coal, some carry grain,
some carry the letters of a whole town, and some are empty and go back to where they came from.

a yard is a simple thing when you look at it from the hill. there is one line that comes in from the north, and one line
that goes out to the south, and between them there are a dozen lines that lie side by side like the strings of an
instrument. a train that comes in is taken apart. its wagons are pushed over a low hill, one after another, and each of
them rolls down by its own weight. at the foot of the hill a man stands at the levers, and with each lever he turns a
switch, so that the wagon goes to the line where the other wagons of its train are waiting. when the last one has come,
the new train is made, and an engine takes it away.

what makes the work hard is that the wagons do not wait for each other. one of them is heavy and runs fast, the next one
is light and the wind holds it back. when the fast one follows the light one too soon, they meet where they should not,
and then the whole yard must stand still until the line is free again. so the man at the levers does not look at one
wagon only. he looks at the one that has just left the top, at the one that is under way, and at the one that is about to
come to rest, and he knows where each of them will be when the next one leaves. nobody can teach that in a day. the old
hands say that you learn it with your feet, for the ground tells you how heavy a wagon is before your eyes can see it.

there is a rule in the yard that is older than the lamps. nobody leaves his place before the train is whole. if one man
goes home because his own part of the work is done, the others will wait for him in the dark, and they will wait for a
long time, because none of them can see that he is gone. so each man says when he has done his part, and he stays where he
is until he has heard the same word from all the others. it costs a minute in the evening, and it has saved many a night.

and there is a second rule, which the young ones do not like. when a wagon is lost, the work of the hour is thrown away,
and all of them go back to the last train that was whole. they write down every train that has left, with its wagons in
their order, and the book is kept in an iron box. it may seem a waste to do again what was done already, but a train that
is put together from what each of them believes to remember is worse than no train at all. the book is always right, or
else it is empty; there is nothing between the two.

in the evening, when the last wagon of the last train has gone over the hill, the lamps are put out one after another, and
the yard lies still. far away in the south a light moves along the valley. it is the train of the morning, and it is on
time.
)";

}  // namespace test
