CREATE TABLE IF NOT EXISTS llama_bench (
  build_commit TEXT,
  cpu_info TEXT,
  model_filename TEXT,
  n_prompt INTEGER,
  n_gen INTEGER,
  avg_ts REAL
);

INSERT INTO llama_bench (build_commit, cpu_info, model_filename, n_prompt, n_gen, avg_ts) VALUES ('3f1ae2e3', 'it''s (a) CPU; really', 'm.gguf', '512', '0', '410.125');
INSERT INTO llama_bench (build_commit, cpu_info, model_filename, n_prompt, n_gen, avg_ts) VALUES ('3f1ae2e3', NULL, 'm.gguf', 0, 128, 4.5e1);
