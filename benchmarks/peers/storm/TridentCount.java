import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.task.IMetricsContext;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.trident.TridentTopology;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.operation.builtin.Count;
import org.apache.storm.trident.spout.ITridentSpout;
import org.apache.storm.trident.state.State;
import org.apache.storm.trident.state.StateFactory;
import org.apache.storm.trident.state.TransactionalValue;
import org.apache.storm.trident.state.map.IBackingMap;
import org.apache.storm.trident.state.map.TransactionalMap;
import org.apache.storm.trident.topology.TransactionAttempt;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/** The word count in Trident: groups are counted where they are, then added to a transactional map in memory. */
final class TridentCount {
    static StormTopology topology() {
        TridentTopology topology = new TridentTopology();
        topology.newStream("words", new Words())
                .parallelismHint(Bench.TASKS)
                .groupBy(new Fields("word"))
                .persistentAggregate(new Factory(), new Count(), new Fields("n"))
                .parallelismHint(Bench.TASKS);
        return topology.build();
    }

    static final class Words implements ITridentSpout<Long> {
        @Override
        public ITridentSpout.BatchCoordinator<Long> getCoordinator(String id, Map conf, TopologyContext context) {
            return new Planned();
        }

        @Override
        public ITridentSpout.Emitter<Long> getEmitter(String id, Map conf, TopologyContext context) {
            int tasks = context.getComponentTasks(context.getThisComponentId()).size();
            return new Emitted(context.getThisTaskIndex(), tasks);
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return null;
        }

        @Override
        public Fields getOutputFields() {
            return new Fields("word");
        }
    }

    static final class Planned implements ITridentSpout.BatchCoordinator<Long> {
        @Override
        public Long initializeTransaction(long txid, Long previous, Long current) {
            Bench.begun(txid);
            return txid;
        }

        @Override
        public void success(long txid) {
            Bench.committed(txid, 1);
        }

        @Override
        public boolean isReady(long txid) {
            return txid <= Bench.last;
        }

        @Override
        public void close() {}
    }

    static final class Emitted implements ITridentSpout.Emitter<Long> {
        private final int task;
        private final int tasks;

        Emitted(int task, int tasks) {
            this.task = task;
            this.tasks = tasks;
        }

        @Override
        public void emitBatch(TransactionAttempt attempt, Long txid, TridentCollector collector) {
            long size = Bench.size(txid);
            for (int at = (int) (size * task / tasks); at < size * (task + 1) / tasks; at++) {
                collector.emit(new Values(Bench.word(txid, at)));
            }
        }

        @Override
        public void success(TransactionAttempt attempt) {}

        @Override
        public void close() {}
    }

    static final class Factory implements StateFactory {
        @Override
        public State makeState(Map conf, IMetricsContext metrics, int partition, int partitions) {
            return TransactionalMap.build(new Memory());
        }
    }

    static final class Memory implements IBackingMap<TransactionalValue> {
        @Override
        public List<TransactionalValue> multiGet(List<List<Object>> keys) {
            List<TransactionalValue> found = new ArrayList<>(keys.size());
            for (List<Object> key : keys) {
                Bench.Value value = Bench.state.get((String) key.get(0));
                found.add(value == null ? null : new TransactionalValue<>(value.txid, value.n));
            }
            return found;
        }

        @Override
        public void multiPut(List<List<Object>> keys, List<TransactionalValue> values) {
            for (int at = 0; at < keys.size(); at++) {
                TransactionalValue value = values.get(at);
                long n = ((Number) value.getVal()).longValue();
                Bench.state.put((String) keys.get(at).get(0), new Bench.Value(value.getTxid(), n, 0));
            }
        }
    }

    private TridentCount() {}
}
