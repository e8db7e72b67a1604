/* harness/experiment: files that are refused and where complaints point; the files shipped, the schema, the fuzzer's corpus. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <string.h>

#include "base/file.h"
#include "harness/experiment_fields.h"
#include "tests/support/experiment_text.h"

#define ENGINES \
	"'engine':{'model':'m'},'engines':{'a':{'params':{'tp':2}},'b':{'adapter':'command','command':['x'],'flags':{'threads':'-" \
	"t'}}}"
#define FACTORS "'matrix':{'factors':{'graph_max_bs':[8,0]}}"
#define TEN "aaaaaaaaaa"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

/* Every line of this table is refused with this complaint: place, path, reason. */
static const struct {
	const char *text, *complaint;
} refused[] = {
	{"", "x.json:1:"},
	{"[1]", "x.json:1:1: must be object, is array"},
	{"{'name':'s','matrix':{},}", "x.json:1:25: "},
	{"{'name':'s',\n 'nme':1," FACTORS "}", "x.json:2:2: nme: unknown key; known here: $schema, schema, name, "},
	{"{" FACTORS "}", "x.json:1:1: a name is needed"},
	{"{'name':'', " FACTORS "}", "x.json:1:9: name: must not be empty"},
	{"{'name':7, " FACTORS "}", "x.json:1:9: name: must be string, is integer"},
	{"{'name':'a\\u0000b'," FACTORS "}", "x.json:1:9: name: must not contain a NUL character"},
	{"{'name':'a\\u001b[2J'," FACTORS "}", "x.json:1:9: name: must not contain control characters"},
	{"{'name':'" HUNDRED HUNDRED "a'," FACTORS "}", "x.json:1:9: name: must have at most 200 bytes, has 201"},
	{"{'schema':'experiment/2','name':'s'," FACTORS "}",
		"x.json:1:11: schema: must be one of experiment/1; is \"experiment/2\""},
	{"{'name':'s'}", "x.json:1:1: matrix: no candidate differs from the baseline"},
	{"{'name':'s','matrix':{'factors':{}}}", "x.json:1:22: matrix: no candidate differs from the baseline"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':[]}}}",
		"x.json:1:49: matrix.factors.graph_max_bs: must list from 1 to 4096 values"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':8}}}",
		"x.json:1:49: matrix.factors.graph_max_bs: must be array, is integer"},
	{"{'name':'s','matrix':{'factors':{'graph_max':[8,0]}}}",
		"x.json:1:34: matrix.factors.graph_max: unknown knob 'graph_max'; the builtin engine has allreduce"},
	{"{'name':'s','engine':{'adapter':'vllm'},'matrix':{'factors':{'a+b':[8,0]}}}",
		"x.json:1:62: matrix.factors.a+b: 'a+b' cannot name a knob"},
	{"{'name':'s','engine':{'adapter':'vllm'},'matrix':{'factors':{'aa_twin':[8,0]}}}",
		"x.json:1:62: matrix.factors.aa_twin: 'aa_twin' cannot name a knob"},
	{"{'name':'s','engine':{'adapter':'command','command':['x']},'matrix':{'factors':{'k':[8,0]}}}",
		"x.json:1:81: matrix.factors.k: adapter command needs the flag of knob 'k' in engine.flags"},
	{"{'name':'s','engine':{'adapter':'attach','url':'http://h:1'}," FACTORS "}",
		"matrix.factors.graph_max_bs: adapter attach cannot change a running"},
	{"{'name':'s','engine':{'adapter':'attach'}," FACTORS "}", "x.json:1:22: engine: adapter attach needs a url"},
	{"{'name':'s','engine':{'adapter':'tgi'}," FACTORS "}",
		"x.json:1:33: engine.adapter: must be one of builtin, llamacpp, vllm, sglang, command, attach"},
	{"{'name':'s','engine':{'url':'http://h'}," FACTORS "}", "engine.url: a url belongs to adapter attach"},
	{"{'name':'s'," ENGINES "," FACTORS "}", "matrix.factors.graph_max_bs: adapter command needs the flag of knob"},
	{"{'name':'s'," ENGINES ",'matrix':{'factors':{'threads':[1,2]}}}", "engines: no knob \"engine\" chooses among them"},
	{"{'name':'s'," ENGINES ",'matrix':{'factors':{'engine':['a','c']}}}",
		"x.json:1:174: matrix.factors.engine[1]: must be a name under \"engines\": a, b"},
	{"{'name':'s'," ENGINES ",'matrix':{'factors':{'engine':['a','b'],'tp':[1,2]}}}",
		"matrix.factors.tp: adapter command needs"},
	{"{'name':'s','engine':{'adapter':'builtin'},'engines':{'a':{}},'matrix':{'factors':{'engine':['a']}}}",
		"engine: beside \"engines\" only a model"},
	{"{'name':'s','engines':{'a':{'params':{'k':1}}},'matrix':{'factors':{'engine':['a']}}}",
		"x.json:1:39: engines.a.params.k: unknown knob 'k'"},
	{"{'name':'s','engines':{'a':{'params':{'tp':1}},'b':{}},'matrix':{'factors':{'engine':['a','b'],'tp':[1,2]}}}",
		"engines: a.params.tp is a knob of the whole experiment already"},
	{"{'name':'s','engines':{},'matrix':{'factors':{'engine':['a']}}}", "engines: must name from 1 to 16"},
	{"{'name':'s','engines':{'a':1},'matrix':{'factors':{'engine':['a']}}}", "engines.a: must be object"},
	{"{'name':'s','engine':{'command':[]}," FACTORS "}", "engine.command: must begin with a program"},
	{"{'name':'s','engine':{'command':['x',1]}," FACTORS "}", "x.json:1:38: engine.command[1]: must be string, is integer"},
	{"{'name':'s','engine':{'ready':{'probe':'none'}}," FACTORS "}", "engine.ready.probe: must be one of one_token"},
	{"{'name':'s','engine':{'env':{'A=B':'1'}}," FACTORS "}", "a variable's name cannot hold '='"},
	{"{'name':'s','matrix':{'mode':'sprint','factors':{'graph_max_bs':[8,0]}}}",
		"x.json:1:30: matrix.mode: must be one of ofat, grid, list"},
	{"{'name':'s','matrix':{'mode':'list','factors':{'graph_max_bs':[8,0]}}}",
		"matrix.factors: mode list takes arms, not factors"},
	{"{'name':'s','matrix':{'arms':[]}}", "matrix.arms: arms belongs to the modes list and race"},
	{"{'name':'s','matrix':{'monotone':{},'factors':{'graph_max_bs':[8,0]}}}", "x.json:1:23: matrix.monotone: unknown key"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]},'include':[{'tp':2}]}}",
		"x.json:1:68: matrix.include[0].tp: 'tp' is no knob of this experiment; give it a value in baseline.params"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]},'exclude':{'graph_max_bs':0}}}",
		"matrix.exclude: must be array, is object"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]},'exclude':[{}]}}",
		"matrix.exclude[0]: an empty assignment would exclude every arm"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,1]},'include':[{'name':'graph_max_bs=0','graph_max_bs':3}]}}",
		"matrix.include[0]: two arms are named 'graph_max_bs=0'"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':{'from':1,'to':3}}}}",
		"matrix.factors.graph_max_bs: a range needs from <= to"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':{'from':1,'to':1e9,'step':1}}}}",
		"the range has 1000000000 values, more than 4096"},
	{"{'name':'s','matrix':{'factors':{'graph_max_bs':{'from':0,'to':1000,'step':1}}}}", "more than 256 arms"},
	{"{'name':'s','engine':{'adapter':'vllm'},'matrix':{'mode':'grid','factors':{'max_num_seqs':{'from':1,'to':400,'step':1},'"
	 "max_model_len':{'from':1,'to':400,'step':1}}}}",
		"matrix.factors: the grid has 160000 points"},
	{"{'name':'s'," FACTORS ",'workloads':[]}", "workloads: must not be an empty list"},
	{"{'name':'s'," FACTORS ",'workloads':[{'dataset':{'kind':'jsonl'}}]}",
		"workloads[0].dataset: a dataset of kind jsonl needs a path"},
	{"{'name':'s'," FACTORS ",'workloads':[{'dataset':{'path':'no-such-file.jsonl'}}]}",
		"workloads[0].dataset.path: cannot open 'no-such-file.jsonl'"},
	{"{'name':'s'," FACTORS ",'workloads':[{'dataset':{'path':'-'}}]}",
		"workloads[0].dataset.path: prompts cannot come from standard input"},
	{"{'name':'s'," FACTORS ",'workloads':[{'dataset':{'jitter':1}}]}",
		"workloads[0].dataset.jitter: jitter belongs to a dataset of kind random_ids"},
	{"{'name':'s'," FACTORS ",'workloads':[{'weight':1}]}", "workloads[0].weight: unknown key"},
	{"{'name':'s'," FACTORS ",'workloads':[{'endpoint':'/v1/chat/completions','dataset':{'kind':'random_ids'}}]}",
		"random token ids can only be sent"},
	{"{'name':'s'," FACTORS ",'workloads':[{'concurrency':4,'requests':3}]}",
		"requests (3) must be at least the concurrency (4)"},
	{"{'name':'s'," FACTORS ",'workloads':[{'concurrency':[1,0]}]}",
		"workloads[0].concurrency[1]: must be an integer from 1 to 4096"},
	{"{'name':'s'," FACTORS ",'workloads':[{'sampling':{'max_tokens':8},'dataset':{'output_len':8}}]}",
		"say either sampling.max_tokens or dataset.output_len"},
	{"{'name':'s'," FACTORS ",'workloads':[{'name':'a'},{'name':'a'}]}", "workloads[1]: two workloads are named 'a'"},
	{"{'name':'s'," FACTORS ",'workloads':[{'applies_to':[{'tp':1}]}]}", "workloads[0].applies_to[0].tp: 'tp' is no knob"},
	{"{'name':'s'," FACTORS ",'workloads':[{'applies_to':[{'baseline':true}]}]}",
		"workloads: no workload applies to graph_max_bs=0"},
	{"{'name':'s'," FACTORS ",'protocol':{'blocks':0}}", "protocol.blocks: must be from 1 to 100, is 0"},
	{"{'name':'s'," FACTORS ",'protocol':{'blocks':2.5}}", "protocol.blocks: must be integer, is number"},
	{"{'name':'s'," FACTORS ",'protocol':{'blocks':5,'max_blocks':3}}", "max_blocks (3) is less than blocks (5)"},
	{"{'name':'s'," FACTORS ",'protocol':{'looks':[3,3]}}", "protocol.looks[1]: looks must be rising integers"},
	{"{'name':'s'," FACTORS ",'protocol':{'blocks':3,'max_blocks':8,'looks':[3,5]}}",
		"protocol.looks: the first look must come after blocks (3), the last after max_blocks (8)"},
	{"{'name':'s'," FACTORS ",'guards':{'throttle_fraction':0.1}}", "guards.throttle_fraction: unknown key"},
	{"{'name':'s'," FACTORS ",'guards':{'completed_frac':1.5}}", "guards.completed_frac: must be from 0 to 1, is 1.5"},
	{"{'name':'s'," FACTORS ",'verdict':{'primary':{'metric':'speed'}}}",
		"verdict.primary.metric: unknown metric 'speed'; there are output_tps"},
	{"{'name':'s'," FACTORS ",'verdict':{'alpha':0}}", "verdict.alpha: must be from 1e-06 to 0.5, is 0"},
	{"{'name':'s'," FACTORS ",'verdict':{'constraints':[{'metric':'ttft_ms_p90'}]}}",
		"verdict.constraints[0]: must be an object with metric and max_regress_pct"},
	{"{'name':'s'," FACTORS ",'tags':['a',2]}", "tags[1]: must be string, is integer"},
	{"{'name':'s','name':'t'," FACTORS "}", "x.json:1:"},
};

static void bad_files_are_refused_with_their_place(void **state)
{
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		struct err err = {0};
		const char *complaint = experiment_complaint(refused[i].text, &err);
		if (err.status != STATUS_INPUT || !strstr(complaint, refused[i].complaint) || strncmp(complaint, "x.json:", 7) != 0)
			fail_msg("%s\n  expected: %s\n  got:      %s", refused[i].text, refused[i].complaint, complaint);
	}
}

static void a_broken_published_file_is_refused_at_its_stray_brace(void **state)
{
	struct experiment *e = NULL;
	struct err err = {0};
	assert_int_equal(experiment_load("tests/golden/field/x02_broken.json", NULL, &e, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "tests/golden/field/x02_broken.json:8:"));
}

static void every_shipped_experiment_is_accepted(void **state)
{
	DIR *folder = opendir("experiments");
	int files = 0;
	assert_non_null(folder);
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
		size_t len = strlen(entry->d_name);
		if (len < 6 || !text_equal(entry->d_name + len - 5, ".json") || text_equal(entry->d_name, "schema.json"))
			continue;
		struct text path = {0};
		struct experiment *e = NULL;
		struct err err = {0};
		text_printf(&path, "experiments/%s", entry->d_name);
		if (experiment_load(text_str(&path), NULL, &e, &err))
			fail_msg("%s", err.text);
		assert_int_equal(e->notices.count, 0);
		assert_string_equal(json_text(json_get(e->document, "$schema")), "schema.json");
		experiment_release(e);
		text_release(&path);
		files++;
	}
	closedir(folder);
	assert_true(files >= 5);
}

static void the_fuzzing_corpus_is_read_without_harm(void **state)
{
	DIR *folder = opendir("tests/fuzz/corpus/experiment");
	int files = 0;
	assert_non_null(folder);
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
		if (entry->d_name[0] == '.')
			continue;
		struct text path = {0};
		struct experiment *e = NULL;
		struct err err = {0};
		text_printf(&path, "tests/fuzz/corpus/experiment/%s", entry->d_name);
		if (experiment_load(text_str(&path), NULL, &e, &err) == STATUS_OK)
			experiment_release(e);
		else
			assert_int_equal(err.status, STATUS_INPUT);
		text_release(&path);
		files++;
	}
	closedir(folder);
	assert_true(files >= 8);
}

/* Walks the schema to the object that describes a section: "workloads[].dataset" is properties.workloads.items.properties.dataset.
 */
static const struct json *schema_of(const struct json *schema, const char *path)
{
	while (schema && *path) {
		size_t len = strcspn(path, ".[");
		char *key = mem_strndup(path, len);
		schema = text_equal(key, "*") ? json_get(schema, "additionalProperties")
					      : json_get(json_get(schema, "properties"), key);
		mem_free(key);
		path += len;
		if (text_starts_with(path, "[]")) {
			schema = json_get(schema, "items");
			path += 2;
		}
		path += *path == '.';
		for (size_t i = 0; i < json_count(json_get(schema, "anyOf")); i++) /* the object among the alternatives */
			if (json_get(json_at(json_get(schema, "anyOf"), i), "properties"))
				return json_at(json_get(schema, "anyOf"), i);
	}
	return schema;
}

static void the_published_schema_has_the_parsers_keys(void **state)
{
	struct text text = {0};
	struct json *schema = NULL;
	struct err err = {0};
	assert_int_equal(file_read("experiments/schema.json", 1 << 20, &text, &err), STATUS_OK);
	if (json_parse(text_str(&text), text.len, "experiments/schema.json", &schema, &err))
		fail_msg("%s", err.text);
	for (int id = 0; id < SECTION_COUNT; id++) {
		const struct experiment_section *section = &experiment_sections[id];
		const struct json *properties = json_get(schema_of(schema, section->path), "properties");
		size_t keys = 0;
		for (; section->keys[keys]; keys++)
			if (!json_get(properties, section->keys[keys]))
				fail_msg("the schema lacks '%s' in '%s'", section->keys[keys], section->path);
		if (json_count(properties) != keys)
			fail_msg("the schema has %zu keys in '%s', the parser %zu", json_count(properties), section->path, keys);
		assert_int_equal(json_kind_of(json_get(schema_of(schema, section->path), "additionalProperties")), JSON_KIND_BOOL);
	}
	json_free(schema);
	text_release(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_files_are_refused_with_their_place),
		cmocka_unit_test(a_broken_published_file_is_refused_at_its_stray_brace),
		cmocka_unit_test(every_shipped_experiment_is_accepted),
		cmocka_unit_test(the_fuzzing_corpus_is_read_without_harm),
		cmocka_unit_test(the_published_schema_has_the_parsers_keys),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
